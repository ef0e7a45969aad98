-- Sliding window counter, see sliding_window_counter.rs. What is available is counted in 1/window of a
-- request: the limit, less the current count, less what has not faded of the previous one.
open[5] = function(c, instant, mark, major, minor)
  local at, length, moved = c.present, c.span, false
  local start = at - at % length
  local elapsed, count, before = at - start, 0, 0
  if instant then
    -- A start of windows of another length lies within one of these.
    local stored = tick_of(instant, c.tick)
    stored = stored - stored % length
    if stored >= start then
      count, before = major, minor
      if stored > at then
        if stored - at > length then
          moved = true
        else
          -- The clock is a little behind the state: it stands still at the start of the state's window.
          elapsed, start = 0, stored
        end
      end
    elseif stored + length >= start then
      before = major
    end
  end
  -- Under a lowered limit a window was at most full. What is kept stays as it is.
  local faded, full = min(before, c.capacity) * (length - elapsed), min(count, c.capacity) * length
  return c.full - faded - full, start, moved, count, before
end

close[5] = close[3]
