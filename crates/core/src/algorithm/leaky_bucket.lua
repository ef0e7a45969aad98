-- Leaky bucket, see leaky_bucket.rs. What is available is the room above the level, and is kept as tokens are.
open[LEAKY_BUCKET], close[LEAKY_BUCKET] = open[TOKEN_BUCKET], close[TOKEN_BUCKET]
apply_report[LEAKY_BUCKET] = apply_report_to_bucket
