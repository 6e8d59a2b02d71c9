"""What runs in a child process: the session, its link and journal, the agent loop, tools, code."""
