"""The engine: one training loop for all methods, and the run folders it writes.

In reading order: `config` (what a run computes), `identity` (its hash), `run_folder` (its files), `run` (what entered
its loss, and the run read back from it), `ranking` (which epoch is best), `run_data` (its split and pixels), `session`
(everything it trains with, and on which device), `train` (the only loop) and `stepping` (one update, and the
optimiser); `state` and `checkpoint` (how it resumes after a stop), `feature_cache` (features of a whole part, for all
runs that need the same), `interrupts`, `monitor` (what a run would do, its progress, and loggers such as TensorBoard),
`trial` (how long a step takes) and `swad`.

A RUN FOLDER is `<runs>/<label>-<first 12 digits of the config's hash>`:

    config.json              the resolved config (`RunConfig`), with its hash; written first
    manifest.tsv             the split (`stablenet.data.manifest.Manifest`)
    records.jsonl            metrics, one JSON object per line; the same bytes for the same config, however often the
                             run was interrupted (on the CPU)
    oracle.jsonl             target metrics per epoch, only on request; read by the rule `oracle` only
    timing.jsonl             seconds and images per second of every epoch, device and versions
    best.safetensors         the model of the epoch with the best source validation (`ranking.validation_rank`)
    last.safetensors         the model after the last epoch
    worst-group.safetensors  the model of the epoch with the best worst group of source validation
                             (`ranking.group_rank`), only if the validation part has several domains
    worst-pseudo-group.safetensors  the same by `ranking.pseudo_group_rank`, only if the method weights validation
                             samples
    averaged.safetensors     the model with averaged weights, only with `train.averaging=swad`
    epoch-0007.safetensors   the model after every epoch, only with `keep_epochs`
    weights.parquet          what entered the loss, a row per training sample (`engine/run.py`): id, label,
                             domain, weight, offset, context; only if the method has sample weights or offsets
    checkpoint.safetensors   everything needed to resume an unfinished run; deleted when it has finished
    status.json              {"state": "running" | "interrupted" | "failed" | "finished", "reason", "epoch", "step"}
    tensorboard/             curves, with `--logger tensorboard`
    metrics.csv              the same as a table, with `--logger csv`
    mlflow.json              the id of the run in MLflow, with `--logger mlflow`

RECORDS, by "kind":
    start   config_hash, manifest_hash, parameters (of the network), train, validation (samples), steps_per_epoch;
            preset_version, where the method has versions (`weighting/recommended.py`)
    step    every `train.log_every` steps: step, epoch, loss, and the method's diagnostics (accuracy of the batch;
            the others are listed on the method's page)
    solve   what a method computed between epochs: epoch, and its diagnostics
    epoch   after every epoch: epoch (from 1), step, learning_rate, train {loss, accuracy, diagnostics},
            validation {loss, accuracy, mean_domain_accuracy, worst_group_accuracy, per_domain, per_class, count,
            groups (`metrics.describe_groups`), and
            weighted_accuracy, weighted_loss, weighted_count (effective sample size) if the method weights the
            validation samples: they then rank the epochs; and pseudo_groups, as groups, with raised and lowered weights
            for contexts},
            or null if the split has no validation part; per_domain only for up to 20 domains;
            judged, the method's findings, if any, and rank_penalty, which is subtracted from the accuracy by which the
            epoch is ranked (`Judgement`)
    averaging  with `train.averaging=swad`, every `train.swad.every` steps: step, epoch, validation_loss, threshold,
            kept (first and last step known to be in the window, null before it opens), ended
    averaged   at the end: epoch, step, first_step, last_step, converged (whether a window was found),
            validation of the averaged predictor
    end     epoch, step, best_epoch
A line of oracle.jsonl is {"kind": "oracle", "epoch", "test": {…as validation}}.

After training, load a run with

    run = load_run(path)            # .config, .manifest, .records, .status, .classes
    run.model                       # the best model in eval mode: images (b, 3, s, s) -> logits (b, classes)
    run.load_model("last")          # "best", "last", "averaged" or an epoch's number
    run.weights()                   # the table of weights.parquet
    run.transform                   # pixels (b, H, W, 3) uint8, keys -> images (b, 3, s, s), as in validation
    run.open_part("test", root)     # `PartSamples` of a part, for a `Loader`; root: folder of the source

Only safetensors, JSON and Parquet files are read, never pickle.
"""
