-- GCRA, see gcra.rs. What is available is what may still be booked, and is kept as tokens are.
open[2], close[2] = open[0], close[0]
