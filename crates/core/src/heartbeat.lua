-- One heartbeat of a node, see heartbeat.rs. What it costs does not depend on how many nodes there are, but for
-- the logarithm in a sorted set.
--
-- KEYS[1]  the nodes that are alive: a sorted set of ids, each with the time of its last heartbeat in microseconds
--          of the server's clock
-- KEYS[2]  the description of this node
-- ARGV[1]  its id
-- ARGV[2]  after how many microseconds without a heartbeat a node is forgotten
-- ARGV[3]  for how many milliseconds the keys are kept
-- ARGV[4]  the description, with one heartbeat in a few
--
-- Answers the time, the number of nodes that are alive, and 1 if this node was not among them before.
local call, format = redis.call, string.format
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local seen = format('%.0f', now)
local is_new = call('ZADD', KEYS[1], seen, ARGV[1])
call('ZREMRANGEBYSCORE', KEYS[1], '-inf', format('(%.0f', now - ARGV[2]))
if ARGV[4] then call('SET', KEYS[2], ARGV[4], 'PX', ARGV[3]) end
if ARGV[4] or is_new == 1 then call('PEXPIRE', KEYS[1], ARGV[3]) end
-- A clock that was set back, or that of another primary after a failover, leaves times in the future behind. A live
-- node corrects its own within a second; the others do not count.
return { seen, call('ZCOUNT', KEYS[1], '-inf', format('%.0f', now + ARGV[2])), is_new }
