"""The engine: one training loop for all methods, and run folders that hold all it did.

A RUN FOLDER is `<runs>/<label>-<first 12 digits of the config's hash>`:

    config.json              the resolved config (`RunConfig`), with its hash; written first
    manifest.tsv             the split (`stablenet.data.manifest.Manifest`)
    records.jsonl            what was measured, one JSON object a line; the same bytes for the same config, however
                             often the run was interrupted (on the CPU)
    oracle.jsonl             target figures per epoch, only where they were asked for; no selection reads it
    timing.jsonl             seconds and images per second of every epoch, and what device and versions did it
    best.safetensors         the model of the epoch with the best source validation (`records.validation_rank`)
    last.safetensors         the model after the last epoch
    averaged.safetensors     the model of averaged weights, only with `train.averaging=swad`
    epoch-0007.safetensors   the model after every epoch, only with `keep_epochs`
    weights.parquet          what entered the loss, a row per training sample (`stablenet.engine.weights`): id, label,
                             domain, weight, offset, context; only where the method weighs samples or has offsets
    checkpoint.safetensors   everything an unfinished run needs to go on; gone when it has finished
    status.json              {"state": "running" | "interrupted" | "failed" | "finished", "reason", "epoch", "step"}
    tensorboard/             curves, with `--tensorboard`

RECORDS, by "kind":
    start   config_hash, manifest_hash, parameters (of the network), train, validation (samples), steps_per_epoch
    step    every `train.log_every` steps: step, epoch, loss, and the method's diagnostics (accuracy of the batch;
            what else there is says the method's page)
    solve   what a method did between epochs: epoch, and its figures
    epoch   after every epoch: epoch (from 1), step, learning_rate, train {loss, accuracy, diagnostics},
            validation {loss, accuracy, mean_domain_accuracy, worst_group_accuracy, per_domain, per_class, count, and
            weighted_accuracy, weighted_loss, weighted_count (effective samples) where the method weighs the validation
            samples: they rank the epochs then},
            or null where the split has no validation part; per_domain only for up to 20 domains;
            judged, what the method found, where it found something, and rank_penalty, what that takes off the
            accuracy by which the epoch is ranked (`Judgement`)
    averaging  with `train.averaging=swad`, every `train.swad.every` steps: step, epoch, validation_loss, threshold,
            kept (first and last step averaged for certain, null before the window opens), ended
    averaged   at its end: epoch, step, first_step, last_step, converged (whether a window was found),
            validation of the averaged predictor
    end     epoch, step, best_epoch
A line of oracle.jsonl is {"kind": "oracle", "epoch", "test": {…as validation}}.

After training, a model comes back with

    run = load_run(path)            # .config, .manifest, .records, .status, .classes
    run.model                       # the best model in eval mode: images (b, 3, s, s) -> logits (b, classes)
    run.load_model("last")          # "best", "last", "averaged" or an epoch's number
    run.weights()                   # the table of weights.parquet
    run.transform                   # pixels (b, H, W, 3) uint8, keys -> images (b, 3, s, s), as in validation
    run.open_part("test", root)     # `Samples` of a part, for a `Loader`; root: where the source lies

which reads files alone: safetensors and JSON, never pickle.
"""
