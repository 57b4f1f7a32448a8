# SPDX-License-Identifier: GPL-2.0-only
#
# What the machine of kernel/ltp said, as lines "MODE ROUND TEST CASE RESULT", separated by tabs. TEST is a program
# with its arguments. With an empty CASE, RESULT is by its exit status, which adds up 1 (failed), 2 (broken: it
# could not be tried), 4 (a warning) and 32 (not for this machine); else CASE is one of these words of the
# programs, and RESULT says how often they said it. Variables: mode, round.

function say(name, result) {
    printf "%s\t%s\t%s\t%s\t%s\n", mode, round, test, name, result
}

function result_of(status) {
    if (status == 0) return "pass"
    if (status == 32) return "skip"
    # By timeout: its own status, or the signal that it sent.
    if (status == 124 || status == 137 || status == 143) return "time out"
    return status % 2 ? "fail" : "broken"
}

BEGIN { words = split("TPASS TFAIL TBROK TCONF", word, " ") }

{ sub(/\r$/, "") }
/^@mm begin / {
    test = substr($0, 11)
    for (i = 1; i <= words; i++)
        said[word[i]] = 0
    next
}
/^@mm end / {
    say("", result_of($3))
    for (i = 1; i <= words; i++)
        say(word[i], said[word[i]])
    test = ""
    next
}
!test { next }
# "file.c:12: TPASS: text" or "name    1  TPASS  :  text"; a summary at the end says the same in other words.
/^\| / {
    for (i = 1; i <= words; i++)
        if ($0 ~ "^\\| [^ ]+( +[0-9]+)? +" word[i] " *:")
            said[word[i]]++
}
