-- GCRA, see gcra.rs. What is available is what may still be booked, and is kept as tokens are.
open[GCRA], close[GCRA] = open[TOKEN_BUCKET], close[TOKEN_BUCKET]
apply_report[GCRA] = apply_report_to_bucket
