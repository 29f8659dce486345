"""Cases at random from a seed, and the plainer cases that shrinking tries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from random import Random

from ..scenes.kinds import KINDS
from ..scenes.workflow import FAMILIES, TRANSFORMERS, Case, Family, Ingredient, Settings
from .ingredients import SINGLE, SMALLEST, WORDS
from .transformers import OF_TRANSFORMERS

SAMPLERS = (
    "euler", "euler", "euler", "euler_ancestral", "euler_ancestral", "heun", "dpm_2", "dpm_2_ancestral", "lms",
    "dpmpp_2s_ancestral", "dpmpp_sde", "dpmpp_2m", "dpmpp_2m", "dpmpp_2m_sde", "dpmpp_3m_sde", "ddim", "uni_pc",
    "lcm", "ddpm", "res_multistep", "euler_cfg_pp", "deis", "er_sde",
)  # fmt: skip
SCHEDULERS = ("normal", "karras", "exponential", "simple", "sgm_uniform", "ddim_uniform", "beta")
FLOW_SAMPLERS = ("euler", "euler", "euler_ancestral", "heun", "dpmpp_2m", "res_multistep", "lcm", "er_sde", "uni_pc")
HOW_MANY = (0, 1, 1, 2, 2, 2, 3, 3, 4, 5)
NODES = ("loader", "model_node", "vae_node")  # settings for where OneGraph's nodes are
LARGEST = 200  # pixels
LARGEST_ENCODED = 136  # the same, of images that are encoded: the VAE's encoder is as wide as a full-size one


TRANSFORMERS_SHARE = 1 / 3


def _ingredients(rng: Random, family: Family) -> tuple[Ingredient, ...]:
    drawn = [kind for kind in KINDS.values() if kind.weight]
    kinds = [kind for kind in drawn if kind.family in (None, family) and not kind.of_transformers]
    if family in TRANSFORMERS:
        kinds = [kind for kind in drawn if kind.of_transformers or kind.name in OF_TRANSFORMERS]
    chosen: list[Ingredient] = []
    taken: set[str] = set()
    for _ in range(rng.choice(HOW_MANY)):
        (kind,) = rng.choices(kinds, [k.weight for k in kinds])
        if kind.stage in SINGLE:
            if kind.stage in taken:
                continue
            taken.add(kind.stage)
        chosen.append(Ingredient(kind.name, kind.draw(rng)))
    return tuple(chosen)


def draw(seed: int, number: int) -> Case:
    """The case of that number under a seed; it does not depend on other numbers."""
    if Random(f"{seed}:{number}:family").random() < TRANSFORMERS_SHARE:
        return _transformer(seed, number)
    rng = Random(f"{seed}:{number}")
    family = rng.choice(FAMILIES)
    ingredients = _ingredients(rng, family)
    encodes = any(KINDS[i.kind].stage == "latent" or i.kind == "decode_and_again" for i in ingredients)
    sides = range(SMALLEST, (LARGEST_ENCODED if encodes else LARGEST) + 1, 8)
    patches = sum(KINDS[i.kind].stage == "model" for i in ingredients)
    loader, model_node, vae_node = "plain", rng.randint(0, patches), rng.choice(["none", "decoder", "both", "both"])
    if rng.random() < 0.15:
        loader = "onegraph"
        model_node, vae_node = rng.choice([-1, -1, model_node]), rng.choice(["none", "none", "both"])
    elif vae_node != "none" and rng.random() < 0.07:
        model_node = -1
    # PerpNeg without a negative prediction divides by what is nearly nothing: rounding alone decides its image.
    strengths = (
        [2.5, 5.0, 7.0] if any(i.kind == "perp_neg" for i in ingredients) else [1.0, 1.0, 2.5, 5.0, 7.0, 7.0, 9.5]
    )
    settings = Settings(
        family=family,
        width=rng.choice(sides),
        height=rng.choice(sides),
        batch=rng.choice([1, 1, 1, 2, 2, 3, 4, 5]),
        steps=rng.choice([2, 3, 3, 4, 6]),
        cfg=rng.choice(strengths),
        sampler=rng.choice(SAMPLERS),
        scheduler=rng.choice(SCHEDULERS),
        denoise=rng.choice([1.0, 1.0, 0.8, 0.55]),
        noise=rng.randrange(2**32),
        positive_words=rng.choice(WORDS),
        negative_words=rng.choice(WORDS),
        loader=loader,
        model_node=model_node,
        vae_node=vae_node,
        order=rng.choice(["plain first", "plain first", "nodes first", "nodes first", "apart"]),
    )
    return Case(f"{seed}-{number}", settings, ingredients)


def _transformer(seed: int, number: int) -> Case:
    """A case of a diffusion transformer."""
    rng = Random(f"{seed}:{number}:transformer")
    family = rng.choice(TRANSFORMERS)
    ingredients = _ingredients(rng, family)
    sides = range(SMALLEST, LARGEST + 1, 8)
    perpendicular = any("perp_neg" in i.kind for i in ingredients)  # see `draw`
    settings = Settings(
        family=family,
        width=rng.choice(sides),
        height=rng.choice(sides),
        batch=rng.choice([1, 1, 1, 2, 3]),
        steps=rng.choice([2, 3, 4, 6]),
        cfg=rng.choice([2.5, 5.0] if perpendicular else [1.0, 1.0, 2.5, 4.0, 7.0]),
        sampler=rng.choice(FLOW_SAMPLERS),
        scheduler=rng.choice(["simple", "normal", "beta", "sgm_uniform"]),
        denoise=rng.choice([1.0, 1.0, 0.7]),
        noise=rng.randrange(2**32),
        positive_words=rng.choice(WORDS),
        negative_words=rng.choice(WORDS),
        model_node=rng.randint(0, sum(KINDS[i.kind].stage == "model" for i in ingredients)),
        order=rng.choice(["plain first", "plain first", "nodes first", "nodes first", "apart"]),
    )
    return Case(f"{seed}-{number}", settings, ingredients)


def served(case: Case) -> bool:
    """Whether every call of the components that the case compiles is known to go through a graph."""
    return all(KINDS[i.kind].served(i.values) for i in case.ingredients)


def plainer(case: Case) -> Iterator[Case]:
    """Cases with less in them, the plainest first."""
    settings, plainest = case.settings, Settings()
    if case.ingredients:
        yield replace(case, ingredients=())
        if len(case.ingredients) > 2:
            middle = len(case.ingredients) // 2
            yield replace(case, ingredients=case.ingredients[:middle])
            yield replace(case, ingredients=case.ingredients[middle:])
        for number in range(len(case.ingredients)):
            yield case.without(number)
    bound = any(KINDS[i.kind].family is not None for i in case.ingredients)
    if bound or settings.family in TRANSFORMERS:
        plainest = replace(plainest, family=settings.family)
    plain = replace(plainest, **{name: getattr(settings, name) for name in NODES})
    candidates = [plain]
    if settings.compiles_decoder and settings.compiles_model:
        candidates += [replace(settings, loader="plain", vae_node="none", model_node=max(settings.model_node, 0))]
        candidates += [replace(settings, loader="plain", vae_node="both", model_node=-1)]
    candidates += [replace(settings, **{f.name: getattr(plainest, f.name)}) for f in fields(Settings)]
    for candidate in candidates:
        if candidate != settings and (candidate.compiles_model or candidate.compiles_decoder):
            yield replace(case, settings=candidate)
