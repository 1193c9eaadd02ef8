-- Who listened went before its token came. If there is anything, somebody else must look.

if call('ZCARD', q.pending) > 0 then
  ring(q, 1)
end
broadcast = true
finish()
return { '' }
