"""File formats that the interpreter's own code lacks, by modules that the host runs beside it."""
