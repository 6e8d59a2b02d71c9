"""What crosses a process boundary: ids, events, messages, LWIR, values, errors. Pure: no I/O."""
