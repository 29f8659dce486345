"""What a case is, and the API prompt it stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from headless import workflows

Family = Literal["sdxl", "sd15", "inpaint", "ip2p", "flux", "z-image", "qwen-image", "wan 2.1 t2v"]
FAMILIES: tuple[Family, ...] = ("sdxl", "sd15")  # of random workflows
TRANSFORMERS: tuple[Family, ...] = ("flux", "z-image", "qwen-image", "wan 2.1 t2v")  # of `models.dits`, also of these
CONTEXT = {"sdxl": 2048, "sd15": 768, "inpaint": 768, "ip2p": 768, "refiner": 1280}  # widths of the texts' encodings
LORAS = 2  # of each family
Link = list[Any]  # [node id, output]
Values = Mapping[str, Any]


def checkpoint_file(name: str) -> str:
    """The file of a family's checkpoint, of its `<family>_second` or of the `refiner`."""
    return f"fuzz_{name}.safetensors"


def lora_file(family: str, number: int) -> str:
    """The file of one of a family's LoRAs."""
    return f"fuzz_{family.replace(' ', '_')}_{number}.safetensors"


def controlnet_file(family: str) -> str:
    """The file of a family's ControlNet."""
    return f"fuzz_{family}_controlnet.safetensors"


@dataclass(frozen=True)
class Settings:
    """What every case has. The defaults are the plainest workflow; shrinking goes back to them.

    Attributes:
        positive_words, negative_words: 75 words make 77 tokens.
        loader: with `onegraph` Load Checkpoint (OneGraph) compiles model and VAE.
        model_node: how many of the ingredients that patch the model come before Compile Model; -1: no such node.
        vae_node: what Compile VAE compiles; `none`: no such node.
        order: which of the two runs comes first; `apart`: plainly, then everything is unloaded, then with the nodes.
    """

    family: Family = "sdxl"
    width: int = 128
    height: int = 128
    batch: int = 1
    steps: int = 2
    cfg: float = 7.0
    sampler: str = "euler"
    scheduler: str = "normal"
    denoise: float = 1.0
    noise: int = 1
    positive_words: int = 3
    negative_words: int = 3
    loader: Literal["plain", "onegraph"] = "plain"
    model_node: int = 0
    vae_node: Literal["none", "decoder", "both"] = "none"
    order: Literal["plain first", "nodes first", "apart"] = "plain first"

    @property
    def compiles_model(self) -> bool:
        return self.loader == "onegraph" or self.model_node >= 0

    @property
    def compiles_decoder(self) -> bool:
        return self.loader == "onegraph" or self.vae_node != "none"


@dataclass(frozen=True)
class Ingredient:
    """One thing that a workflow does besides the plainest, and how."""

    kind: str
    values: Values = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(f'{k}={v}' for k, v in self.values.items())})"


@dataclass(frozen=True)
class Case:
    """A workflow in short: a name, settings and ingredients in order."""

    name: str
    settings: Settings = field(default_factory=Settings)
    ingredients: tuple[Ingredient, ...] = ()

    def to_json(self) -> str:
        """One line from which `from_json` makes the same case."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        data = json.loads(text)
        ingredients = tuple(Ingredient(i["kind"], i["values"]) for i in data["ingredients"])
        return cls(data["name"], Settings(**data["settings"]), ingredients)

    def without(self, ingredient: int) -> Case:
        rest = self.ingredients[:ingredient] + self.ingredients[ingredient + 1 :]
        return replace(self, ingredients=rest)


class Workflow:
    """A workflow under construction; ingredients change the links and add nodes.

    Attributes:
        loaded: the checkpoint's MODEL as its loader gives it.
        model, vae, positive, negative, latent: where these come from at present.
        width, height: of the latent, in pixels.
    """

    def __init__(self, settings: Settings, when_missing: str = "wait") -> None:
        self.settings = settings
        self.choices = {"backend": "inductor", "when_missing": when_missing}
        self.prompt: workflows.Prompt = {}
        self.width, self.height = settings.width, settings.height
        file = checkpoint_file(settings.family)
        if settings.loader == "onegraph":
            loader = self.add(
                "OneGraphLoadCheckpoint", ckpt_name=file, shapes="any size", parts="both",
                dynamic_resolution="auto", **self.choices,
            )  # fmt: skip
        else:
            loader = self.add("CheckpointLoaderSimple", ckpt_name=file)
        self.model, self.vae = loader, output(loader, 2)
        self.loaded = loader
        if settings.vae_node != "none":
            self.vae = self.add(
                "OneGraphCompileVAE", vae=self.vae, parts=settings.vae_node, dynamic_resolution="auto", **self.choices
            )
        self.positive = self.text("lighthouse", settings.positive_words)
        self.negative = self.text("blurry", settings.negative_words)
        self.latent = self.add(
            "EmptyLatentImage", width=settings.width, height=settings.height, batch_size=settings.batch
        )

    def add(self, class_type: str, /, **inputs: Any) -> Link:
        """Add a node and give its first output."""
        node = str(len(self.prompt) + 1)
        self.prompt[node] = {"class_type": class_type, "inputs": inputs}
        return [node, 0]

    def compile_model(self, model: Link) -> Link:
        return self.add("OneGraphCompileModel", model=model, shapes="any size", **self.choices)

    def text(self, topic: str, words: int = 3, family: str = "") -> Link:
        text = " ".join([topic, *["x"] * (words - 1)])
        return self.add("OneGraphTestTextEncode", text=text, width=CONTEXT[family or self.settings.family])

    def image(self, seed: int = 1) -> Link:
        """A picture as large as the latent."""
        return self.add("OneGraphTestImage", width=self.width, height=self.height, seed=seed)

    def mask(self, left: float, top: float, width: float, height: float, feather: int = 0) -> Link:
        """A rectangle of ones, in fractions of the latent's size."""
        zeros = self.add("SolidMask", value=0.0, width=self.width, height=self.height)
        size = {"width": max(8, int(width * self.width)), "height": max(8, int(height * self.height))}
        ones = self.add("SolidMask", value=1.0, **size)
        if feather:
            ones = self.add("FeatherMask", mask=ones, left=feather, top=feather, right=feather, bottom=feather)
        return self.add(
            "MaskComposite", destination=zeros, source=ones, x=int(left * self.width), y=int(top * self.height),
            operation="add",
        )  # fmt: skip

    def second_model(self) -> Link:
        """The MODEL of another checkpoint of the same architecture."""
        return self.add("CheckpointLoaderSimple", ckpt_name=checkpoint_file(f"{self.settings.family}_second"))

    def controlnet(self) -> Link:
        """The family's ControlNet."""
        return self.add("ControlNetLoader", control_net_name=controlnet_file(self.settings.family))

    def steer(self, net: Link, **values: Any) -> None:
        """Have a ControlNet steer both texts, by a picture."""
        whole = {"start_percent": 0.0, "end_percent": 1.0, **values}
        applied = self.add("ControlNetApplyAdvanced", **self.texts, control_net=net, image=self.image(7), **whole)
        self.positive, self.negative = applied, output(applied, 1)

    @property
    def texts(self) -> dict[str, Link]:
        """Both texts, as nodes take them."""
        return {"positive": self.positive, "negative": self.negative}

    @property
    def _given(self) -> dict[str, Any]:
        """What samplers' nodes take, but for what they call the seed."""
        s = self.settings
        of_case = {"steps": s.steps, "cfg": s.cfg, "sampler_name": s.sampler, "scheduler": s.scheduler}
        return {"model": self.model, "latent_image": self.latent, **self.texts, **of_case}

    def save(self, latent: Link) -> None:
        """Decode and save."""
        self.save_image(self.add("VAEDecode", samples=latent, vae=self.vae))

    def save_image(self, image: Link, prefix: str = "fuzz") -> None:
        self.add("SaveImage", images=image, filename_prefix=prefix)

    def sample(self, **changes: Any) -> None:
        """KSampler with the case's settings."""
        s = self.settings
        self.latent = self.add("KSampler", **{"seed": s.noise, "denoise": s.denoise, **self._given, **changes})

    def sample_in_turns(self, second: Link, steps: int, at: int, **texts: Link) -> None:
        """The first steps by the model, those from `at` on by a second one, which may take other texts."""
        given = {**self._given, "steps": steps, "noise_seed": self.settings.noise}
        first = {"add_noise": "enable", "return_with_leftover_noise": "enable", "start_at_step": 0, "end_at_step": at}
        half = self.add("KSamplerAdvanced", **given, **first)
        rest = {"add_noise": "disable", "return_with_leftover_noise": "disable", "start_at_step": at}
        more = {"end_at_step": 10000, "model": second, "latent_image": half, **texts}
        self.latent = self.add("KSamplerAdvanced", **{**given, **rest, **more})


class TransformerWorkflow(Workflow):
    """The same for a small diffusion transformer, by nodes of tests/nodes; it has no VAE."""

    def __init__(self, settings: Settings, when_missing: str = "wait") -> None:
        self.settings = settings
        self.choices = {"backend": "inductor", "when_missing": when_missing}
        self.prompt = {}
        self.width, self.height = settings.width, settings.height
        self.loaded = self.model = self.add("OneGraphTestLoadTransformer", family=settings.family, seed=0)
        self.positive = self.text("lighthouse", settings.positive_words)
        self.negative = self.text("blurry", settings.negative_words)
        self.latent = self.empty("empty" if settings.denoise == 1.0 else "picture")

    def empty(self, content: str) -> Link:
        """A latent of the case's size."""
        s = self.settings
        sizes = {"width": s.width, "height": s.height, "batch_size": s.batch}
        return self.add("OneGraphTestTransformerLatent", family=s.family, content=content, **sizes)

    def text(self, topic: str, words: int = 3, family: str = "") -> Link:
        text = " ".join([topic, *["x"] * (words - 1)])
        sizes = {"width": self.width, "height": self.height}
        return self.add("OneGraphTestTransformerText", text=text, family=self.settings.family, **sizes)

    def second_model(self) -> Link:
        return self.add("OneGraphTestLoadTransformer", family=self.settings.family, seed=9)

    def save(self, latent: Link) -> None:
        self.save_image(self.add("OneGraphTestTransformerDecode", samples=latent))


def output(link: Link, number: int) -> Link:
    """Another output of a link's node."""
    return [link[0], number]


def prompt_of(case: Case) -> workflows.Prompt:
    """The case's API prompt, with OneGraph's nodes."""
    from .kinds import KINDS  # which knows what a workflow is

    chosen = [(KINDS[i.kind], i.values) for i in case.ingredients]
    made = TransformerWorkflow if case.settings.family in TRANSFORMERS else Workflow
    work = made(case.settings, "eager" if any(kind.traces == "stays" for kind, _ in chosen) else "wait")
    patches = [(kind, values) for kind, values in chosen if kind.stage == "model"]
    for number in range(len(patches) + 1):
        if number == min(case.settings.model_node, len(patches)):
            work.model = work.compile_model(work.model)
        if number < len(patches):
            kind, values = patches[number]
            kind.wire(work, values)
    usual = {"sampling": work.sample, "decode": lambda: work.save(work.latent)}
    for stage in ("conditioning", "latent", "sampling", "second pass", "decode"):
        of_stage = [(kind, values) for kind, values in chosen if kind.stage == stage]
        for kind, values in of_stage:
            kind.wire(work, values)
        if not of_stage and stage in usual:
            usual[stage]()
    return work.prompt


def plain(prompt: workflows.Prompt) -> workflows.Prompt:
    """The same workflow without any node of OneGraph."""
    changed = workflows.without_onegraph(prompt)
    for node in workflows.nodes(changed, "OneGraphLoadCheckpoint"):
        name = changed[node]["inputs"]["ckpt_name"]
        changed[node] = {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": name}}
    return changed
