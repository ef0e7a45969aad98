-- Windows, see window.rs.

-- The count of the window that began at the tick `start`, after tokens of the window `epoch` were returned: only within
-- the window in which they were taken, and never more than it counts.
local function count_after_return(c, start, count, epoch, returned)
  if (start / c.span) % 4294967296 ~= epoch then return count end
  return count - min(count, returned)
end
