"""``andrea serve``: runs over HTTP, live or finished, read and never written.

A run's folder is all that the server knows: it follows ``journal.jsonl`` while a run trains, in another process.

``lines``      what stands in a line of the journal
``tail``       the lines that a growing file has gained
``brief``      the little that is known of every run: state, last step
``history``    the columns of a run that is looked at
``phases``     random, frequency, structure, coherence, knowledge
``runs``       all runs below a folder, by name
``machine``    figures of the GPU and of the computer
``metrics``    the same for Prometheus
``events``     what changed, for an open page
``page``       the dashboard as one document
``app``        the addresses, and what answers them
"""
