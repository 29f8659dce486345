"""Whose an entry is, and who else may change it: signatures, keys, publishers, owners of files and folders."""
