"""What all scenes share, in a server and in this process: models, samplings, additions, changes and one judgement.

`process` is a new process of a user, `nodes` hands models on as OneGraph's nodes do, `sampling` is a sampling of a
small diffusion transformer to which things are added, `places` is where code of others runs in one, `workflow` and
`kinds` say what workflows consist of, `bench` is a server with the models that they name, `judge` says whether a result
is exact and its calls ran as promised.
"""
