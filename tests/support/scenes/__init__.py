"""What all scenes share, in a server and in this process: models, samplings, additions, changes and one judgement.

`nodes` hands models on as OneGraph's nodes do, `sampling` is one sampling of a small diffusion transformer or a UNet,
`places` is where code of others runs in one, `bench` is a server with the models that workflows name, `kinds` says what
can be added to a workflow, `judge` whether a result is exact and its calls ran as promised.
"""
