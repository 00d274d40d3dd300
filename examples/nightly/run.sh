#!/bin/sh
# Runs reports every night: with the day as a parameter, budgets, a page with figures, JUnit for CI.
# Started once more after a failure, it goes on where it ended.
cd "$(dirname "$0")" || exit
day=${1:-2026-11-23}
exec wasm-kernel run reports -o "done/$day" -p day "$day" --resume --input orders.csv \
    --cell-seconds 60 --notebook-seconds 300 --html "done/$day/index.html" --junit "done/$day/junit.xml"
