-- Buckets, see bucket.rs and lending.rs. What is lent of a bucket is kept beside its state by the epoch in which it was
-- lent: `current` in `lent_epoch`, `previous` in the epoch before. After the next epoch it is dropped: by then it was
-- spent, returned, or lost with a node.

-- What is available of a bucket at the tick `at`, if it was `available` at the tick `last`: each tick adds
-- `amount`, up to the capacity less what was lent at the time.
local function refill(c, available, last, at, lent_epoch, current, previous)
  local full = c.full
  local lent = current + previous
  if lent > 0 then
    local epoch_span = EPOCH_US / c.tick_us
    for later = 1, 2 do
      local boundary = (lent_epoch + later) * epoch_span
      if boundary > at then break end
      if boundary >= last then
        -- A lowered capacity may be below what is lent: then nothing is refilled, but nothing owed either.
        local most = max(0, c.capacity - lent) * c.unit
        available = min(most, available + min(boundary - last, c.span) * c.amount)
        last = boundary
      end
      lent = later == 1 and current or 0
    end
    full = max(0, c.capacity - lent) * c.unit
  end
  if at > last then available = available + min(at - last, c.span) * c.amount end
  return min(available, full)
end

-- What is available of a bucket now, if it was `available` at the instant of its state; the tick that this is brought
-- to, which is the present unless the state lies a little ahead; and whether the clock has jumped.
local function flow(c, available, instant_us, lent_epoch, current, previous)
  local at, last, jumped = c.present, instant_us, false
  if c.tick_us > 1 then last = stored_tick(last, c.tick_us) end
  if last > at then
    if last - at > c.span then
      -- So far ahead that the clock must have jumped: it is moved to the present.
      jumped, last = true, at
    else
      at = last
    end
  end
  if lent_epoch then return refill(c, available, last, at, lent_epoch, current, previous), at, jumped end
  local elapsed, full = at - last, c.full
  if elapsed > c.span then return full, at, jumped end
  available = available + elapsed * c.amount
  if available > full then return full, at, jumped end
  return available, at, jumped
end

-- `apply_report` of a bucket.
local function apply_report_to_bucket(c, available, _, count, _, lent_epoch, current, previous, epoch, spent, returned)
  -- Tokens of an older epoch count as spent: they have been refilled since.
  if epoch ~= lent_epoch and epoch ~= lent_epoch - 1 then return available, count, current, previous end
  local lent = epoch == lent_epoch and current or previous
  returned = min(returned, lent)
  lent = lent - min(lent, spent + returned)
  if epoch == lent_epoch then current = lent else previous = lent end
  local most = max(0, c.capacity - current - previous) * c.unit
  return max(available, min(most, available + min(returned, c.capacity) * c.unit)), count, current, previous
end
