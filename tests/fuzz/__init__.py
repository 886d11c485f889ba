"""A fuzzer of lives: random calls on small random networks, finished tasks compared bit for bit.

A life is one integer. ``script.draw(seed)`` turns it into plain data: a model, the options of
``convert`` and a list of steps. ``life.live(script)`` runs it and asks the oracle after each step:
every finished task answers with the bits that it had when it was finished, or an
``AutoeideticError`` is raised. ``shrink.shrunk`` drops steps while the finding stays.

    models    networks of their own, one per thing that an example does not show
    subjects  a model with the calls that it is asked with, from here, the zoo and random blocks
    script    what is drawn from a seed: plain data that prints as Python
    oracle    what is recorded, what is compared, what counts as a finding
    registry  actions, what a user does: one small function each, with options to draw from
    actions   all of them: ``tasks``, ``training``, ``copies``, ``edits``, ``loose_ends``
    life      runs a script
    shrink    the shortest script with the same finding
    without   named safeguards that can be taken out, to see that the fuzzer misses them

    python -m fuzz 17            # in tests/: the life of seed 17
    python -m fuzz 0 500         # 500 lives, findings shrunk and grouped
"""
