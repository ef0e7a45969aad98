-- One client after the other.
local which = ARGV[2]
local keys, before, clients = KEYS, 0, #which
if flags % 2 == 1 then keys, before = ARGV, #ARGV - clients end
local replies = { encode(">I7", now_us) }
for index = 1, clients do
  local call = ARGV[2 + byte(which, index)]
  local done, reply = pcall(known_calls[call] or charge_client, keys[before + index], call)
  if not done then reply = "-" .. (type(reply) == "table" and reply.err or tostring(reply)) end
  replies[1 + index] = reply
end
return replies
