"""Data sets as lists of images, splits of them, manifests that record a split, and the pixels behind it.

In reading order: `image_list` with `columns` (what a source returns), `sources` (a reader for every data set),
`splits`, `manifest` (a split as a file) and `check` (of its invariants). Then the pixels: `decode`, `prepare` and
`store` (decoded once, memory-mapped from then on), `cache` (where they are kept), `compose` (digits and cut-outs over
backgrounds), `feed` and `loader` (batches on the device), `augment` with `transforms` and `kernels`, its CUDA form.
`contact` draws contact sheets.
"""
