-- Fixed window, see fixed_window.rs. What is available is the limit less the count.
open[3] = function(c)
  local at = c.present
  local start, count = at - at % c.span, 0
  if c.known then
    local stored = tick_of(c.instant, c.tick)
    if stored >= start then
      count = c.major
      if stored > at then
        if stored - at > c.span then
          c.changed = true
        else
          start = stored - stored % c.span
        end
      end
    end
  end
  c.start, c.count, c.before = start, count, 0
  c.available = c.capacity - count
end

close[3] = function(c) return c.start * c.tick, 0, c.count + c.taken, c.before end
