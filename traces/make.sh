#!/usr/bin/env bash
# Make the shipped workloads anew; the same bytes every time. Run from anywhere.
set -euo pipefail
cd "$(dirname "$0")"
specsim=${SPECSIM:-specsim}
$specsim trace synth chat.parquet --duration 3600 --seed 1 \
    --arrivals gamma:rate=5.5,burstiness=0.84 --lengths dataset:name=sharegpt
$specsim trace synth code.parquet --duration 3600 --seed 2 \
    --arrivals gamma:rate=2.57,burstiness=0.1 --lengths dataset:name=instructcoder
$specsim trace synth summarisation.parquet --duration 3600 --seed 3 \
    --arrivals poisson:rate=2 --lengths dataset:name=cnn_dailymail
