"""Make graphs out of modules in a process of their own. Knows torch and the backends, not ComfyUI.

1. The server turns the live module into a skeleton without weights (`skeleton`) and orders a job (`job`).
2. The supervisor starts the worker and follows it (`supervisor`, `progress`).
3. The worker sets itself up (`worker`), rebuilds the module, exports it (`export`), records which functions that ran
   (`code_record`, `code_digest`), compiles and checks the graph (`compile_job`).

`fingerprint` digests what a module's compiled code depends on.
"""
