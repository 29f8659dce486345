"""The compiling process, from both sides: job, supervisor, processes that stand ready, worker, progress."""
