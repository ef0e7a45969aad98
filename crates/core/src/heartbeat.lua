-- One heartbeat of a node, see heartbeat.rs. Its time does not depend on the number of nodes, except for the logarithm of
-- a sorted set.
--
-- KEYS[1]  the nodes that are alive: a sorted set of ids, each with the time of its last heartbeat in microseconds
--          of the server's clock
-- KEYS[2]  the description of this node
-- KEYS[3]  the votes of nodes that measured another time than the corrected clock shows: a sorted set of ids, each with
--          the correction that the node votes for, in microseconds; absent as long as the clock does not step
-- KEYS[4]  the correction that the nodes have agreed on, and when; absent as long as there is none
-- KEYS[5]  reset markers: a list, absent as long as no client was reset lately
-- ARGV[1]  its id
-- ARGV[2]  after how many microseconds without a heartbeat a node is not counted
-- ARGV[3]  for how many milliseconds the keys, and the nodes in them, are kept
-- ARGV[4]  the vote of this node; empty if it has none
-- ARGV[5]  the description, with one heartbeat in a few
--
-- Returns the time, the number of nodes that are alive, 1 if this node was not among them before, and the correction of
-- the clock that the nodes have agreed on: by how many microseconds, and since when; and the reset markers.
local call, format = redis.call, string.format
-- A correction shrinks by one part in so many of the time that passes (`ClockCorrection`).
local SLEW = 100
-- Votes that are no further apart are alike.
local ALIKE = 500000
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

-- A vote is a difference that the node has measured with a heartbeat before this one: how late this one arrives does
-- not matter. When more than half of the nodes vote alike, the clock is corrected by the median of the votes. From then on
-- the correction only shrinks, until the next vote: it does not follow the errors of later measurements.
--
-- A node votes until it hears of the agreement. A vote for what is agreed on already does not count: a second agreement would
-- be some microseconds or milliseconds from the first, and until all nodes knew it, calls by two times would take turns.
local agreed, vote = call('GET', KEYS[4]) or '0 0', ARGV[4]
local agreed_us, since = string.match(agreed, '^(-?%d+) (%d+)$')
if vote ~= '' and agreed_us then
  local shrunk_us = math.floor(math.max(0, now - since) / SLEW)
  local left_us = math.max(0, math.abs(agreed_us) - shrunk_us)
  if tonumber(agreed_us) < 0 then left_us = -left_us end
  if math.abs(vote - left_us) <= ALIKE then vote = '' end
end
local votes = call('ZCARD', KEYS[3])
if vote ~= '' then
  votes = votes + call('ZADD', KEYS[3], vote, ARGV[1])
  call('PEXPIRE', KEYS[3], ARGV[3])
elseif votes > 0 then
  votes = votes - call('ZREM', KEYS[3], ARGV[1])
end
if votes > nodes then
  -- Some of the votes are of nodes that are not alive any more.
  for _, id in ipairs(call('ZRANGE', KEYS[3], 0, -1)) do
    local last = call('ZSCORE', KEYS[1], id)
    if not last or tonumber(last) < oldest then votes = votes - call('ZREM', KEYS[3], id) end
  end
end
if vote ~= '' and 2 * votes > nodes then
  local middle = math.floor((votes - 1) / 2)
  local median = tonumber(call('ZRANGE', KEYS[3], middle, middle, 'WITHSCORES')[2])
  local alike = call('ZCOUNT', KEYS[3], format('%.0f', median - ALIKE), format('%.0f', median + ALIKE))
  if 2 * alike > nodes then
    agreed = format('%.0f %s', median, seen)
    -- Kept for as long as it takes to shrink to nothing.
    local kept = math.ceil(math.abs(median) * SLEW / 1000) + 1000
    call('SET', KEYS[4], agreed, 'PX', format('%.0f', kept))
    call('DEL', KEYS[3])
  end
end
return { seen, nodes, is_new, agreed, call('LRANGE', KEYS[5], 0, -1) }
