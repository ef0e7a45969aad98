-- Fixed window, see fixed_window.rs. What is available is the limit less the count.
open[FIXED_WINDOW] = function(c, instant_us, _, major)
  local at, jumped = c.present, false
  local start, count = at - at % c.span, 0
  if instant_us then
    local stored = tick_of(instant_us, c.tick_us)
    if stored >= start then
      count = major
      if stored > at then
        if stored - at > c.span then
          jumped = true
        else
          start = stored - stored % c.span
        end
      end
    end
  end
  return c.capacity - count, start, jumped, count, 0
end

apply_report[FIXED_WINDOW] = function(c, _, start, count, _, _, current, previous, epoch, _, returned)
  count = count_after_return(c, start, count, epoch, returned)
  return c.capacity - count, count, current, previous
end

close[FIXED_WINDOW] = function(c, _, start, count, before) return start * c.tick_us, 0, count, before end
