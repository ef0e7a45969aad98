-- Leaky bucket, see leaky_bucket.rs. What is available is the room above the level, and is kept as tokens are.
open[1], close[1] = open[0], close[0]
