"""Tables and figures of the papers that this project follows, ours beside theirs.

    python -m benchmarks.papers                            # what there is, and what a part takes
    python -m benchmarks.papers pitfalls table 2           # one of them
    python -m benchmarks.papers nn-stretch                 # all of a paper
    make papers                                            # every one that needs no phone

Each part is a command of its own, whose output goes to the folder of the page; the same command
takes up where it was stopped.
"""
