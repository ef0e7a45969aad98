-- Reads a revision, its text in pieces.
--
-- KEYS: numbers (sorted set), summaries (hash), texts (hash)
-- ARGV: 1 the number, or "" for the newest; 2 and 3 the number and the digest of the revision that the reader has, or "";
--       4 the number of bytes to skip; 5 the most bytes to return
-- Returns {} without such a revision, {summary} if the reader has it, else {summary, length of the text, piece}.

local number = ARGV[1]
if number == '' then number = redis.call('ZRANGE', KEYS[1], -1, -1)[1] end
local summary = number and redis.call('HGET', KEYS[2], number)
if not summary then return {} end
if number == ARGV[2] and cjson.decode(summary).digest == ARGV[3] then return { summary } end
local text = redis.call('HGET', KEYS[3], number)
if not text then return {} end
local skipped = tonumber(ARGV[4])
return { summary, #text, string.sub(text, skipped + 1, skipped + tonumber(ARGV[5])) }
