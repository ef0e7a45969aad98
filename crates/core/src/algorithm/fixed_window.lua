-- Fixed window, see fixed_window.rs. What is available is the limit less the count.
open[3] = function(c, instant, mark, major)
  local at, moved = c.present, false
  local start, count = at - at % c.span, 0
  if instant then
    local stored = tick_of(instant, c.tick)
    if stored >= start then
      count = major
      if stored > at then
        if stored - at > c.span then
          moved = true
        else
          start = stored - stored % c.span
        end
      end
    end
  end
  return c.capacity - count, start, moved, count, 0
end

close[3] = function(c, _, start, count, before) return start * c.tick, 0, count, before end
