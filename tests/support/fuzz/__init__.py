"""Random workflows, run plainly and with OneGraph's nodes: the image must be the same.

`workflow` builds an API prompt from a case, `ingredients` is what a case can consist of, `cases` draws and simplifies
cases, `judge` runs one both ways, `shrink` finds the smallest case that fails alike, `report` adds them up.
"""
