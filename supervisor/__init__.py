"""The supervisor: the pure kernel (state, fold, decide, advance) and the edges around it."""
