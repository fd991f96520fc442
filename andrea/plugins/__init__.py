"""The built-in plugins: the path is the name, so plugins/bandit/ucb1.py is bandit.ucb1."""
