#!/bin/sh
# Runs the reports of ../nightly on two workers of this machine. With a cluster of your own, it is
# --cluster tls://SCHEDULER:8786 instead.
cd "$(dirname "$0")" || exit
exec wasm-kernel run ../nightly/reports -o done -p day 2026-11-23 --input ../nightly/orders.csv \
    --local-cluster 2 --notebook-seconds 300
