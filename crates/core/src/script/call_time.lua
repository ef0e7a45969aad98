-- The time of the call.
local given_us, flags, biased_us, since_us = decode(">I7BI7I7", ARGV[1])
local mode = floor(flags / 2)
if mode == GIVEN_TIME then
  now_us = given_us
else
  local time = redis_call("TIME")
  now_us = time[1] * 1000000 + time[2]
  if mode == CORRECTED_TIME then
    local correction_us = biased_us - CORRECTION_BIAS_US
    if correction_us ~= 0 then
      -- It shrinks alike for all nodes (`ClockCorrection`).
      local shrunk_us = floor(max(0, now_us - since_us) / SLEW)
      if correction_us > 0 then
        now_us = now_us + max(0, correction_us - shrunk_us)
      else
        now_us = now_us + min(0, correction_us + shrunk_us)
      end
    end
    -- The clock has stepped, or the call was on its way for too long: nothing is charged by a time like that.
    if given_us > 0 and (now_us > given_us + CLOCK_TOLERANCE_US or now_us < given_us - CLOCK_TOLERANCE_US) then
      return { encode(">I7", now_us) }
    end
  end
end
epoch_now = floor(now_us / EPOCH_US)
