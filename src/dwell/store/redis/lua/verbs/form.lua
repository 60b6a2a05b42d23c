-- Do one step of forming a topic whose messages are to be rearranged. Answers {'form' while more is to be done, else
-- 'ok'; finish()}.
verb('form', 1, function(topic)
  return {is_formed(topic) and 'ok' or 'form', finish()}
end)
