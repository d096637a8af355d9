"""The command line. A verb parses its options, calls one library function and prints one result.

In reading order: `main` (runs a verb and turns a mistake into one line) and `last_net` (unexpected errors); `verbs`
(gathers them), `verbs_train` (train, config, demo and try), `verbs_lists`, `verbs_models`, `verbs_data`, `verbs_bench`
(bench and paper), `verbs_pages` and `verbs_diagnose`, with `completion` for shells and `outputs` (no input is
overwritten); what they print, `console`, `data_output`, `bench_output` and `progress`.
"""
