-- Charges clients for what they ask, each client all or nothing, in one atomic call.
--
-- KEYS        the hashes of the clients, and behind them the lists of their logs (`script::log_keys`); in a cluster
--             only those of the first may be declared
-- ARGV[1]     how to tell the time (see `script::CallTime`), and whether all keys are repeated at the end of ARGV
-- ARGV[2]     for each client a byte: which of the following it asks for
-- ARGV[3…]    what is asked, as `script::Ask` writes it
--
-- Answers the time, and for each client "+" and what it gets, or "-" and why it gets nothing; or "=" and the state
-- of its one limit, if all passed and nothing was lent. Answers the time alone if the clock is not where it is expected.
--
-- Numbers are doubles here: every product stays below 2^53 (see limit.rs), and what is written goes
-- through struct.pack, never through tostring, which rounds instants. `%` is exact, for what it divides is
-- never negative and below 2^52: an instant, or at most a capacity.
local call, encode, decode = redis.call, struct.pack, struct.unpack
local floor, min, max = math.floor, math.min, math.max
local byte, sub = string.byte, string.sub

local SECOND = 1000000
-- Every state begins with its format; the two differ in the width of the count. A state in another format is
-- an error, never a fresh one.
local WIDE, WIDE_STATE, WIDE_BYTES = 1, ">BBI7I2I4I4", 19
local NARROW, NARROW_STATE, NARROW_BYTES = 2, ">BBI7I2I2I4", 17
-- The same with what is lent.
local WIDE_LENT, NARROW_LENT = ">BBI7I2I4I4I4I4I4", ">BBI7I2I2I4I4I4I4"
local MOST_FIELDS = 500
-- Modes of telling the time, and how far the clock may be from what is expected.
local GIVEN, CORRECTED = 1, 2
local CORRECTION_BIAS, CLOCK_TOLERANCE = 2251799813685248, 500000
-- How long an epoch is, and for how many of them lent tokens are remembered.
local EPOCH, EPOCHS = 2 * SECOND, 2

-- The time, and the epoch in which it lies.
local now, epoch_now
-- By the number of the algorithm, with c for the numbers of a limit:
--
--   open(c, instant, mark, major, minor, epoch, current, previous)
--     what of a state is available, where in time it stands, whether it had to be moved there, and for
--     windows the counts of this one and the one before; no instant is a fresh state, no epoch nothing lent
--   close(c, available, at, count, before)
--     the state that is kept of that: instant, mark, major, minor
--
-- They hand values around and touch no table: a table costs more than the arithmetic. Made at their full
-- size, for they are made anew in each call.
local open = { false, false, false, false, false, [0] = false }
local close = { false, false, false, false, false, [0] = false }

-- The tick in which an instant lies; and the first tick that does not lie before it.
local function tick_of(us, tick)
  if tick == 1 then return us end
  return (us - us % tick) / tick
end

local function tick_after(us, tick)
  if tick == 1 then return us end
  local rest = us % tick
  if rest == 0 then return us / tick end
  return (us - rest) / tick + 1
end

-- What is lent of a bucket is kept beside it by the epoch in which it was lent: `current` in `epoch`, `previous` in
-- the one before. After the next epoch it is forgotten: by then it was spent, returned, or lost with a node.

-- What is available of a bucket at the tick `at`, if it was `available` at the tick `last`: each tick adds
-- `amount`, up to the capacity less what was lent at the time.
local function refill(c, available, last, at, epoch, current, previous)
  local full = c.full
  local lent = current + previous
  if lent > 0 then
    local length = EPOCH / c.tick
    for later = 1, 2 do
      local boundary = (epoch + later) * length
      if boundary > at then break end
      if boundary >= last then
        -- A lowered capacity may lie below what is lent: then nothing is refilled, but nothing owed either.
        local most = max(0, c.capacity - lent) * c.period
        available = min(most, available + min(boundary - last, c.span) * c.amount)
        last = boundary
      end
      lent = later == 1 and current or 0
    end
    full = max(0, c.capacity - lent) * c.period
  end
  if at > last then available = available + min(at - last, c.span) * c.amount end
  return min(available, full)
end

-- What is available of a bucket now, if it was `available` at the instant of its state; the tick that the
-- bucket speaks of, which is the present unless its state lies a little ahead; and whether it was moved there.
local function flow(c, available, instant, epoch, current, previous)
  local at, last, moved = c.present, instant, false
  if c.tick > 1 then last = tick_after(last, c.tick) end
  if last > at then
    if last - at > c.span then
      -- So far ahead that the clock must have jumped: it is moved to the present.
      moved, last = true, at
    else
      at = last
    end
  end
  if epoch then return refill(c, available, last, at, epoch, current, previous), at, moved end
  local elapsed, full = at - last, c.full
  if elapsed > c.span then return full, at, moved end
  available = available + elapsed * c.amount
  if available > full then return full, at, moved end
  return available, at, moved
end
