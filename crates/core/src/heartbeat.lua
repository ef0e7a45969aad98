-- One heartbeat of a node, see heartbeat.rs. What it costs does not depend on how many nodes there are, but for
-- the logarithm in a sorted set.
--
-- KEYS[1]  the nodes that are alive: a sorted set of ids, each with the time of its last heartbeat in microseconds
--          of the server's clock
-- KEYS[2]  the description of this node
-- KEYS[3]  the nodes that expect another time than the server's clock shows: a sorted set of ids, each with the
--          difference in microseconds; absent as long as the clock does not step
-- ARGV[1]  its id
-- ARGV[2]  after how many microseconds without a heartbeat a node is not counted
-- ARGV[3]  for how many milliseconds the keys, and the nodes in them, are kept
-- ARGV[4]  the time that this node expects; 0 if it does not know
-- ARGV[5]  the description, with one heartbeat in a few
--
-- Answers the time, the number of nodes that are alive, 1 if this node was not among them before, and by how many
-- microseconds the nodes correct the clock.
local call, format = redis.call, string.format
-- A difference that begins a correction, and one that ends it.
local STEPPED, SAME = 500000, 10000
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local seen = format('%.0f', now)
local is_new = call('ZADD', KEYS[1], seen, ARGV[1])
call('ZREMRANGEBYSCORE', KEYS[1], '-inf', format('(%.0f', now - ARGV[3] * 1000))
if ARGV[5] then call('SET', KEYS[2], ARGV[5], 'PX', ARGV[3]) end
if ARGV[5] or is_new == 1 then call('PEXPIRE', KEYS[1], ARGV[3]) end
-- A clock that was set back, or that of another primary after a failover, leaves times in the future behind. A live
-- node corrects its own within a second; the others do not count.
local oldest = now - ARGV[2]
local nodes = call('ZCOUNT', KEYS[1], format('%.0f', oldest), format('%.0f', now + ARGV[2]))

-- The clock is corrected if more than half of the nodes expect another time: by the median of what they expect. A node
-- that does not know yet follows the others.
local votes, correction = call('ZCARD', KEYS[3]), '0'
local expected = tonumber(ARGV[4])
local knowing = expected > 0 and nodes or nodes - 1
if expected > 0 then
  local off = math.abs(expected - now)
  if off > STEPPED or (votes > 0 and off > SAME) then
    votes = votes + call('ZADD', KEYS[3], format('%.0f', expected - now), ARGV[1])
    call('PEXPIRE', KEYS[3], ARGV[3])
  elseif votes > 0 then
    votes = votes - call('ZREM', KEYS[3], ARGV[1])
  end
end
if votes > nodes then
  -- Some of them are not alive any more.
  for _, id in ipairs(call('ZRANGE', KEYS[3], 0, -1)) do
    local last = call('ZSCORE', KEYS[1], id)
    if not last or tonumber(last) < oldest then votes = votes - call('ZREM', KEYS[3], id) end
  end
end
if 2 * votes > knowing then
  local middle = math.floor((votes - 1) / 2)
  correction = call('ZRANGE', KEYS[3], middle, middle, 'WITHSCORES')[2]
end
return { seen, nodes, is_new, correction }
