"""A process that interrupts its own phases at instants over their whole life, and checks what they leave behind.

    python -m integration.interrupted MODE COUNT SEED [FAULT]

Its temporary files are to be in a folder of its own (TMPDIR), and those of torch's compiler elsewhere
(TORCHINDUCTOR_CACHE_DIR), as they serve the next process.
"""
