"""The command line. A verb parses its options, calls one library function and prints one result.

In reading order: `main` (runs a verb and turns a mistake into one line) and `last_net` (what nobody expected); `verbs`
(gathers them), `verbs_try`, `verbs_train`, `verbs_config`, `verbs_lists`, `verbs_models`, `verbs_data`, `verbs_cache`,
`verbs_bench`, `verbs_paper`, `verbs_pages` and `verbs_diagnose`, with `data_place` for options they share and
`completion` for shells; what they print,
`console`, `data_output`, `bench_output`, `preview_output` and `progress`.
"""
