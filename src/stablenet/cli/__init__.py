"""The command line. A verb parses its options, calls one library function and prints one result.

In reading order: `main` (gathers the verbs, and turns a mistake into one line); the verbs, `verbs_train`,
`verbs_lists`, `verbs_models`, `verbs_data`, `verbs_bench`, `verbs_pages` and `verbs_diagnose`; what they print,
`data_output`, `bench_output` and `progress`.
"""
