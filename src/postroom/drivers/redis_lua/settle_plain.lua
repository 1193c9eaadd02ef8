-- The usual settle. ARGV 6... verdicts.

local answer = replayed()
if not answer then
  answer = acknowledge(6)
  if answer then
    finish(answer)
  end
end
if answer then
  return { '', answer, '' }
end
