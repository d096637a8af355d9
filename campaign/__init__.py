"""A campaign against StableNet: thousands of generated inputs, none of which may end in a traceback or a wrong result.

    python -m campaign --seed 0 --count 5000          # or: make campaign

In reading order: `trial` (one invocation, and what its end is worth), `odd` (values and bytes nobody asked for),
`workshop` (the finished run, store, images and tables that trials break), `parts` (the generators, one kind of input
each), `forks` (a process that has imported everything and forks once per trial), `record` (the resumable log and the
summary), `page` (what `results/campaign` shows) and `__main__`. Beside them, `long_life` watches one training, `sweep`
kills the workers of many runs, and `many_runs` times lists of thousands.
"""
