"""Scripts for the shell. Each finds three files, `a.csv`, `b.csv` and `c.txt`, with their names."""

from __future__ import annotations

SCRIPTS = {
    "echo $(ls | wc -l) $((6 * 7))": "3 42\n",
    "ls -a; ls ../tmp; cat ../app/a.csv; ls -la | wc -l": ".\n..\na.csv\nb.csv\nc.txt\na.csv\n6\n",
    "echo 'é 漢' | wc -c; echo '漢'": "7\n漢\n",
    "timeout 0.1 sleep 5; echo $?": "124\n",
    "TIMEFORMAT='%0R %2U %lS %%'; { time true; } 2>&1; TIMEFORMAT=; { time true; } 2>&1\n"
    "mapfile -C echo -c 1 a <<< x 2>&1": "0 0.00 0m0.000s %\nmapfile: -C is not known here\n",
    """printf 'a 1\\nb 2\\n' | awk '{print $2 > "out_" $1}'; cat out_a; cat out_b""": "1\n2\n",
    "env A=1 B=2 python -c 'import os; print(os.environ[\"B\"])'": "2\n",
    r"printf '\303\251\n'; printf '\377' | od -An; echo -e '\0303\251'": "é\n 000377\né\n",
    "echo é > f; x() { cat f >&2; }; x 2>&1; cat f è 2>&1": (
        "é\né\ncat: è: No such file or directory\n"
    ),
    "bash --login -c 'echo $1' - a; sh -lc 'echo b'; bash -euc 'false; echo c'": "a\nb\n",
    "bash -euo pipefail -c 'false | true; echo a'; echo false > s; bash -e s": "",
    "/bin/sh -c '/usr/bin/env A=b printenv A'; cd /usr/bin; ls sed; which sqlite3; sqlite3 2>&1": (
        "b\nsed\nbash: sqlite3: command not found\n"
    ),
    "echo 'import sys; print(sys.argv)' > p.py; if true; then ./p.py a 'b c'; fi": (
        "['./p.py', 'a', 'b c']\n"
    ),
    "date -d '2024-01-31 + 1 month' +%F; awk 'BEGIN {print strftime(\"%F\", 9), 1 / 3}'": (
        "2024-03-02\n1970-01-01 0.333333\n"
    ),
    "for d in '2024-03-10 monday' '24-01-05' '2024-03-10 12:00 -2 hours' '2024-01-05 12:00 1 day'\n"
    "do date -ud \"$d\" -Is; done; date -ud 'monday 15:00' +%T; date -d 05.01.2024 2>&1": (
        "2024-03-10T00:00:00+00:00\n2024-01-05T00:00:00+00:00\n2024-03-10T15:00:00+00:00\n"
        "2024-01-06T12:00:00+00:00\n15:00:00\ndate: invalid date '05.01.2024'\n"
    ),
    "printf '1.0\\na-2\\n1.0~rc1\\n~x\\na1\\na10.gz\\na9.gz\\n' | sort -V | paste -sd' '\n"
    "printf '1500K\\n1M\\n2k\\n1e9\\n-1K\\n' | sort -h|paste -sd' '\n"
    "echo '-2^2; -(2^2); 3-2^2'|bc\n"
    "printf '9007199254740993\\n9007199254740992\\n' | sort -nu; printf '0x10\\n9\\n' | sort -g": (
        "~x 1.0~rc1 1.0 a1 a9.gz a10.gz a-2\n-1K 1e9 2k 1500K 1M\n4\n-4\n-1\n"
        "9007199254740992\n9007199254740993\n9\n0x10\n"
    ),
    "expr 3 = 3.0; expr 10x = 10; expr match abcd b.; expr substr hello 0 2\n"
    "printf '%.1f ' -inf nan -0": ("0\n0\n0\n\n-inf nan -0.0 "),
    "echo 1735603200 | jq -r 'strftime(\"%j %-e %e %G-W%V %U %I%p %y %%Y\")'\n"
    "jq -nc '(1,2) + (10,20)'; echo -0 | jq .\n"
    'jq -nc \'[2 | ldexp(.; 3)], ("0x10" | try tonumber catch "no number")\'': (
        '366 31 31 2025-W01 52 12AM 24 %Y\n11\n12\n21\n22\n-0\n[16]\n"no number"\n'
    ),
    "trap 'echo $x $?' EXIT; x=1; install -D a.csv d/n; od -An -tx1 d/n; exit 3": (
        " 61 2e 63 73 76 0a\n1 3\n"
    ),
    "python -c 'import sys; print(sys.argv[1:], __name__)' a 'b c'": "['a', 'b c'] __main__\n",
    "echo 'import sys; sys.exit(4)' > s.py; python s.py; echo $?": "4\n",
    "echo '[1, 2]' | python -m json.tool --compact": "[1,2]\n",
    "python -m no 2>&1; python3 -m no.thing x 2>&1 | sed s/no/its/": (
        "/usr/bin/python3: No module named no\n/usr/bin/python3: No module named its.thing\n"
    ),
    "cd /tmp; FOO=1 python -c 'import os; print(os.getcwd(), os.environ[\"FOO\"])'": "/tmp 1\n",
    "tar czf x.tgz *.csv && rm *.csv && tar xvf x.tgz && cat b.csv": "a.csv\nb.csv\nb.csv\n",
    "zip -qr x.zip a.csv c.txt; rm a.csv; unzip -q x.zip; cat a.csv": "a.csv\n",
    "md5sum a.csv > s; sha256sum a.csv >> t; md5sum -c s; sha256sum -c t": "a.csv: OK\n" * 2,
    "date -d '9999999 years' 2>&1; shuf -i 1-9999999999999999999 2>&1; shuf -r -n1 -e 2>&1": (
        "date: invalid date '9999999 years'\nshuf: a number is out of range\n"
        "shuf: can't use this: list index out of range\n"
    ),
    "uname -sm; nproc; id -un; echo $BASH; more c.txt; cat c.txt | less -N": (
        "wasi wasm32\n1\nuser\n/bin/bash\nc.txt\nc.txt\n"
    ),
    "id -u; echo $UID; stat -c '%u %g' c.txt": "0\n0\n0 0\n",
    "seq -f '%03g' 2; seq -ws, 9 .5 10; seq 1000001 | tail -1; seq 1 9999999999999 2>&1": (
        "001\n002\n09.0,09.5,10.0\n1000001\nseq: 9999999999999 numbers do not fit into memory\n"
    ),
    "for x in 1/0 '2*(' 'obase=2; .5' 'sqrt(9)'; do bc <<< $x 2>&1; done": (
        "bc: can't calculate '1/0': division by zero\nbc: can't calculate '2*(': syntax error\n"
        "bc: only whole numbers are printed in another base here, from 2 to 16\n3\n"
    ),
    "echo $((2**62 + 1)) $((1 << 40)) $((~(1 << 33))) $((0x7fffffffffffffff + 1)) $((-7 / 2))": (
        "4611686018427387905 1099511627776 -8589934593 -9223372036854775808 -3\n"
    ),
    "x=$((2**62)); ((x++)); ((x += 2)); echo $x $((x % 1000)); let y=x*3; echo $((y == x * 3))": (
        "4611686018427387907 907\n1\n"
    ),
    r"sed 's/\(.\)\.\(c\)/\U\1&\E-\u\2\n\0/' a.csv": "AA.C-C\na.csv\n",
    r"""echo 'a"b/c' | sed 's/"/\\"/; s/\//\\n/; s/c/\\\\&/'""": r"a\"b\n\\c" + "\n",
    """seq 3 | awk '{q += $1^2; a[$1]} END {print q, 3 in a, sprintf("%d %.1f", "-3.9x", 2)}'""": (
        "14 1 -3 2.0\n"
    ),
    "printf 'a b\\nc\\n' | xargs -I{} echo '<{}>'; ls *.csv | xargs -I F cat F": (
        "<a b>\n<c>\na.csv\nb.csv\n"
    ),
    "printf '%g %.3g %g %g\\n' 1e10 100 0.5 1e-7": "1e+10 100 0.5 1e-07\n",
    "n=0; until ((n>=2)); do ((n+=1)); done; ((n<=1)); echo $n $?": "2 1\n",
    "echo {1..20000} | wc -w; set -- a b c; echo ${#@}; mkdir d; echo */": "20000\n3\nd/\n",
    "mkdir d; cp a.csv d/.h; grep -r a.c; grep -rl a.c .; grep -rn b.c d b.csv": (
        "a.csv:a.csv\nd/.h:a.csv\n./a.csv\n./d/.h\nb.csv:1:b.csv\n"
    ),
    """jq -nr '["a b", 1, "c"] | @csv'; tail -c +3 a.csv; tail -n -1 c.txt""": (
        '"a b",1,"c"\ncsv\nc.txt\n'
    ),
    r"paste -d'\t,' a.csv b.csv c.txt; echo a,b,c | cut -d, --complement -f2; cut -b2- a.csv": (
        "a.csv\tb.csv,c.txt\na,c\n.csv\n"
    ),
    "tar cf x --exclude='*.csv' *; tar tf x; gzip -c a.csv > g; gzip -t g && sort -m a.csv": (
        "c.txt\na.csv\n"
    ),
    r"sed '1i\x' a.csv; seq 5 | sed '2a\y' | head -3": "x\na.csv\n1\n2\ny\n",
    "set -e; f() { false; echo in; }; f && echo and; ! false; f || echo no; false; echo not": (
        "in\nand\nin\n"
    ),
    'set -u; a=(); echo "${b:-c}" "${1-d}" "${b:+e}"; echo "${a[@]}${#a[@]}"': "c d \n0\n",
    """echo a b | awk -v OFS=- '{$1=$1; print $0, length, int(-1.5), substr("abc", 0, 2)}'""": (
        "a-b-3--1-ab\n"
    ),
    """awk 'BEGIN {x[1] = 1; printf "%g %G %.2g ", 1e10, 1e-7, 2^2000; print length(x), 1e-7}'""": (
        "1e+10 1E-07 inf 1 1e-07\n"
    ),
    """echo 'a.b|c' > p; awk -F. '{print $1}' p; awk 'BEGIN {FS = "|"} {print $2}' p""": "a\nc\n",
    "echo '{print $1}' > p; awk -f p OFS=x a.csv; awk '{print $2}' FS=. a.csv": "a.csv\ncsv\n",
    "s=abc; echo ${s:1:2**62}; expr 9007199254740993 + 1; expr -7 / 2; expr a + 1 2>&1": (
        "bc\n9007199254740994\n-3\nexpr: non-integer argument\n"
    ),
    "x=$((2**53 + 1)); [ $x -gt $((2**53)) ] && [[ ! $x -eq 2**53 ]] && test $x -eq $x && echo a": (
        "a\n"
    ),
    "printf '(%.0s' {1..9999} | bc 2>&1 | cut -c-24; shuf -i 1-999999999 2>&1": (
        "bc: can't calculate '(((\nshuf: memory exhausted\n"
    ),
    # words and numbers of the language
    """c="head -c"; $c 2 a.csv; f() { "$@"; }; f printf '%s|' x 'y z'; f; e=; $e echo $?""": (
        "a.x|y z|0\n"
    ),
    """f() { echo 4; }; mkdir d; cd d; touch x y; t=12:34; i=2; a=(1 2 3)
    echo $(($(f) * 2 + `ls | wc -l`)) $((${t%%:*} * 60)) ${a[$((i - 1))]} $((${#a[@]} - 1))""": (
        "10 720 2 2\n"
    ),
    """declare -A c; for w in a b a; do c[$w]=$((${c[$w]:-0} + 1)); done; echo ${c[a]} ${c[b]}""": (
        "2 1\n"
    ),
    """f() { local a=($(seq 3)) b; local -A m=([k]="v w" [n]=$((1 + 2)) [c]=$(echo d e)); b=(z)
    echo ${#a[@]} "${m[k]}" ${m[n]} ${m[c]}; }; a=(g); f; echo "${a[@]}${m[@]}${b[@]}"
    declare -A d=([x]="1 2" ["y z"]='3'); echo "${d[x]}${d[y z]}"; w=(ab cd)
    for x in "${w[@]^}"; do echo $x; done""": "3 v w 3 d e\ng\n1 23\nAb\nCd\n",
    """a=(3 1 2); IFS=$'\\n' s=($(sort <<< "${a[*]}")); IFS=,; x="${s[*]}"; echo "$x"
""": "1,2,3\n",
    r"printf '%d %x %u %.1f %.0f %05.1f\n' 9007199254740993 -1 18446744073709551615 2.25 2.5 -1": (
        "9007199254740993 ffffffffffffffff 18446744073709551615 2.2 2 -01.0\n"
    ),
    "seq -s, 9007199254740993 9007199254740995; seq -f %.1f 0.25 1; printf %d 3x 2>&1; echo $?": (
        "9007199254740993,9007199254740994,9007199254740995\n0.2\n3printf: 3x: invalid number\n1\n"
    ),
    "echo $OSTYPE $HOSTTYPE $MACHTYPE; free -t | tail -1 | cut -c1-6": (
        "wasi wasm32 wasm32-unknown-wasi\nTotal:\n"
    ),
    """f() { echo x | while read l; do return 3; done; echo $?; x=$(return 4); echo $?; }; f
    ((d = 3 << 2)); let 'd <<= 1'; echo $d""": "3\n4\n24\n",
    # files
    r"find . -name '*.csv' -exec mv {} {}.x \; ; ls; find . -name 'c*' -printf '%f %y\n'": (
        "a.csv.x\nb.csv.x\nc.txt\nc.txt f\n"
    ),
    r"find . -exec grep -q b {} \; -print; find . -size -1k; find . ! -exec false \; 2>&1": (
        "./b.csv\nfind: -exec behind ! is not known here\n"
    ),
    r"find . -name a.csv -exec false \; ; echo $?; find . -printf '%Z' 2>&1": (
        "0\nfind: the directive %Z of -printf is not known here\n"
    ),
    "ln -s a.csv l; ls -l l | cut -d' ' -f9-; mkdir d; ls -F d l; touch .h; ls -A1Sr; ls -C 2>&1": (
        "l -> a.csv\nl@\n\nd:\n.h\nl\nc.txt\nb.csv\na.csv\nd\nls: option -C not recognized\n"
    ),
    "touch -d '2024-01-02 03:04:05' a.csv; stat -c '%n %s %Y' a.csv; stat --printf '%y\\n' a.csv\n"
    "touch -t 202401010102.03 n; touch -r n b.csv; touch -c no; date -r b.csv +%FT%T; ls no 2>&1": (
        "a.csv 6 1704164645\n2024-01-02 03:04:05.000000000 +0000\n2024-01-01T01:02:03\n"
        "ls: cannot access 'no': No such file or directory\n"
    ),
    "tar cfz x.tgz a.csv; tar xOfz x.tgz; tar --list --file=x.tgz; tar tf x.tgz b 2>&1\n"
    " tar cf x --wat a 2>&1": (
        "a.csv\na.csv\ntar: b: Not found in archive\ntar: option --wat not recognized\n"
    ),
    "zip -q x a.csv; zip -q x b.csv; unzip -p x.zip; unzip -l x.zip | tail -1\n"
    "gzip -k a.csv; gzip a.csv 2>&1": (
        "a.csv\nb.csv\n       12                     2 files\n"
        "gzip: a.csv.gz already exists; use -f to replace it\n"
    ),
    # lines
    "yes | head -c 300000000 | wc -c; n=3; yes x | head -n $n; yes | head -30000 | wc -l": (
        "300000000\nx\nx\nx\n30000\n"
    ),
    r"""echo "'a b' c" | xargs -n1; seq 3 | xargs -I@ -P2 echo @@
    printf 'x\0' | xargs -0 -t echo 2>&1; printf '' | xargs echo none
    seq 1 | xargs false; echo $?; seq 4 | xargs -L2; xargs -a c.txt
    seq 6 | xargs -s11 echo; echo long | xargs -s9 echo 2>&1""": (
        "a b\nc\n11\n22\n33\nx\necho x\nnone\n123\n1 2\n3 4\nc.txt\n"
        "1 2 3\n4 5 6\nxargs: argument line too long\n"
    ),
    "head -qn1 *.csv; head -c 1k a.csv; tail -qn1 *.csv; tail +1 c.txt; cut -d. -f2,1 a.csv": (
        "a.csv\nb.csv\na.csv\na.csv\nb.csv\nc.txt\na.csv\n"
    ),
    "seq 5 > n; sed -n '/2/,/./p' n; sed -n '/3/,1p' n; sed -n '0,/1/p' n; sed 's/1/x' n 2>&1": (
        "2\n3\n3\n1\nsed: invalid command: unterminated `s' command\n"
    ),
    r"sed -s -n '$p' a.csv b.csv; sed -z 's/\n/,/g' a.csv c.txt; "
    r"printf 'a\0b\0' | sed -z 's/^/x/' | tr '\0' .": ("a.csv\nb.csv\na.csv,c.txt,xa.xb."),
    r"sed --expression='s/a/b/' a.csv; sed -E 's/(/x/' a.csv 2>&1; sed 's/a/b/w f' a.csv 2>&1": (
        "b.csv\nsed: expecting ')'\nsed: invalid command: the flag w of s is not known here\n"
    ),
    "grep -o '[0-9]*' <<< a12b3; grep -s x nosuch; tr -t abc x <<< abc; "
    "date +%3N | wc -c; date -d foo 2>&1": ("12\n3\nxbc\n4\ndate: invalid date 'foo'\n"),
    r"printf '1 a\n2 a\n3 b\n' > u; uniq -f1 u; uniq -s2 -c u; uniq -D -w1 u; join -j2 u u 2>&1; "
    "join -a1 -e- -o 0,2.2 u <(echo '2 x')": (
        "1 a\n3 b\n      2 1 a\n      1 3 b\na 1 1\na 1 2\na 2 1\na 2 2\nb 3 3\n1 -\n2 x\n3 -\n"
    ),
    """jq -c 'group_by(.>1), walk(if type=="number" then .+1 else . end)' <<< '[2,1]'
    jq -c '[match("a";"g").offset], ([1] as $x | {$x})' <<< '"aba"'; jq -j '.[]' <<< '["a"]'""": (
        '[[1],[2]]\n[3,2]\n[0,2]\n{"x":[1]}\na'
    ),
    'jq .a <<< \'[1]\' 2>&1; jq -c \'sort_by(.a, .b)\' <<< \'[{"a":1,"b":2},{"a":1,"b":1}]\'': (
        'jq: parse error: Cannot index array with string "a"\n[{"a":1,"b":1},{"a":1,"b":2}]\n'
    ),
    "jq -nc '{} | .a.b[1].c = 1 | .d += 1'; expr x.txt : '.*\\.\\(.*\\)'; expr match abc ab": (
        '{"a":{"b":[null,{"c":1}]},"d":1}\ntxt\n2\n'
    ),
    r"""seq 4 > n; sed '2,3c x' n; sed 's/a/b/2g' <<< aaa; sed '4a\  y' n | tail -1
    sed '4a   z' n | tail -1; grep -c -- 1 n; grep -ne 2 -e 3 n; grep -r --include 'n' 4 .
    cut -sd, -f2 <<< $'a,b\nc'; cut -d= -f2 <<< $'a=b\nc'""": (
        "1\nx\n4\nabb\n  y\nz\n1\n2:2\n3:3\n./n:4\nb\nb\nc\n"
    ),
    r"""sed -E 's/.*\[([^]]+)\]/\1/;s/[[:space:]]+$//' <<< 'x[a b ]'; sed 's/o\>/0/' <<< 'oo o'
    grep -E '\<c' a.csv c.txt; awk '{gsub(/[\[\]]/, "")} 1' <<< '[a]'; mkdir d; du -hd1 | cut -f2
    du -b a.csv; du -c *.csv | tail -1; diff --color=never a.csv a.csv""": (
        "a b\no0 o\na.csv:a.csv\nc.txt:c.txt\na\n./d\n.\n6\ta.csv\n8\ttotal\n"
    ),
    # awk
    r"""awk 'BEGIN {while (i < 60) c[int(6 * rand())] += i++ < 60; for (k in c) s += c[k]; a[n++]++
    print s, n, int (7 / 2), 2^100; if (n && m = 2) print m; "echo x" | getline; print NR, $0
    while (("seq 2" | getline l[i++]) > 0); print i, l[60] l[61]}'
    printf 's\n1\ne\ns\n2\n' | awk '/s/ && !n++, /e/'
    printf '65\u00a0b c\r\n' | awk '{print NF, length($2); printf "%c", substr($1, 1, 2) + 0}'
    awk 'BEGIN {IGNORECASE = 1}' 2>&1; awk 'BEGIN {break}' 2>&1
    awk 'function f(a) {} BEGIN {f(1, 2)}' 2>&1""": (
        "60 1 3 1267650600228229401496703205376\n2\n1 x\n63 12\ns\n1\ne\n2 2\n"
        "Aawk: IGNORECASE of gawk is not known here\nawk: syntax error: 'break' outside loop\n"
        "awk: the function f is called with more values than it takes\n"
    ),
    """awk 'BEGIN {print ("10" < "9"), (10 < 9), log(-1), ("a" < 1), (x == 0) (x == ""), 2^53 + 1}'
    echo '10 9 0x 0.0' | awk '{print ($1 < $2), ($1 < "9"), ($4 ? 1 : 2), ($3 == 0)}'""": (
        "1 0 nan 0 11 9007199254740992\n0 1 2 0\n"
    ),
    """awk 'function g(a, b) {return b ? g(b, a % b) : a}
    function fill(a, n, i) {for (i = n; i; i--) a[i] = i; for (k in a) s += a[k]; return s}
    function own(l) {l["x"]++; return l["x"]}
    BEGIN {print g(48, 18), fill(z, 3), length(z), own() own()}'""": "6 6 3 11\n",
    r"""awk 'BEGIN {RS = ""; FS = "\n"} {print NR, $1, NF}' <<< $'a\nb\n\n\nc'
    awk -v RS=, 1 <<< a,b
    awk '{getline} END {while (("seq 2" | getline x) > 0) s += x; print s}' no 2>&1""": (
        "1 a 2\n2 c 1\na\nb\n\n3\nawk: cannot open no (No such file or directory)\n"
    ),
    """awk '{print | "sort -r"; print "e" > "/dev/stderr"}
    END {close("sort -r"); r = system("exit 3"); print r}' a.csv b.csv 2>&1
    echo x | awk '{print}' a.csv -; awk 'BEGIN {f()}' 2>&1; awk '{' 2>&1""": (
        "b.csv\na.csv\n3\ne\ne\na.csv\nx\nawk: the function f is not known here\n"
        "awk: syntax error: } is expected before the end\n"
    ),
    r"""awk '{gsub(/b*/, "-"); n = split("  a b ", p); print $0, n, p[1]; $5 = 1; print NF}' <<< abc
    awk -F'[][]' '{print $2}' <<< 'a[b]c'; awk -v FS= '{print $2}' a.csv
    awk '{NF = 1} 1' <<< 'x y'
    awk '{gsub(/l+/, "\\\\&"); gsub("o", "\\&"); printf "%s %#o\n", $0, 8}' <<< hello""": (
        "-a-c- 2 a\n5\nb\n.\nx\n" + r"he\ll& 010" + "\n"
    ),
    """set -- 'a b' c; for f; do echo "<$f>"; done; [ -x "$(command -v ls)" ] && echo x
    x=5; env -i A=1 sh -c 'echo $A ${HOME-no} ${x-no}'; env -u HOME printenv HOME x; env -i B=2 env
    echo 'echo $0 "$1"' > s.sh; ./s.sh 'y z'""": "<a b>\n<c>\nx\n1 no no\nB=2\n./s.sh y z\n",
    """set -e; x=$(false; echo a); echo $x; { false && :; }; (trap 'echo t' EXIT); { exit 2; } &
    wait $! || echo $?; (exit 3) & p=$!; a=1 & wait $p || echo $? ${a-no}; wait 99 2>&1 || echo $?
    f() { false && :; }; f; echo not""": (
        "a\nt\n2\n3 no\nbash: wait: pid 99 is not a child of this shell\n127\n"
    ),
    """f() { local -n r=$1; r+=(z); }; m=(a); f m; echo ${m[@]}; mapfile -td, l <<< a,b
    echo ${#l[@]}; declare -A d=([k]="v w"); declare -p d
    shopt -s nocaseglob; echo C.*; stat -c %N a.csv""": (
        "a z\n2\ndeclare -A d=([k]=\"v w\" )\nc.txt\n'a.csv'\n"
    ),
    """echo over the lazy dog | fold -sw 8; jq -nc '[3, 1, 3] | unique, @sh'; grep -A1 -n . *.csv
    jq -nc '[{"a": 2}] | INDEX(.a)'""": (
        'over \nthe \nlazy dog\n[1,3]\n"3 1 3"\na.csv:1:a.csv\n--\nb.csv:1:b.csv\n{"2":{"a":2}}\n'
    ),
    r"""echo 3.14 4 | grep -oE '[0-9]+|[0-9]+\.[0-9]+'; echo foobar | sed 's/foo\|foobar/X/'
    [[ abc =~ a|ab ]] && echo ${BASH_REMATCH[0]}; echo ab | awk '{sub(/x?(a|ab)/, "X"); print}'
    echo ab | grep -oP 'a|ab'; echo ab | sed -E 's/(a)|(ab)/[\1]/'""": (
        "3.14\n4\nX\nab\nX\na\n[a]b\n"
    ),
    """awk 'BEGIN {a[0] = "xx"; sub(/x/, "y", a[i++]); print i, a[0]; print substr("ab", 0, 1)}'
    echo ' a  b' | awk '{i = 1; sub(/z/, "", $(i++)); print i $0; sub(/a/, "c", $(i - 1)); print}'
    awk 'BEGIN {substr("a")}' 2>&1; awk 'BEGIN {printf "%s %d\\n", 1}' 2>&1""": (
        "1 yx\na\n2 a  b\nc b\nawk: the function substr does not take 1 values\n"
        "awk: not enough values for the format '%s %d\\n'\n"
    ),
    """f() { local x=1 y; x=2; y+=a; g; echo $x $y; local -i n=1; n+=2; echo $n; }; g() { x+=3; }; f
    declare -A m=([k]=v); h() { local m=1; m=2; echo $m; }; h; echo ${m[k]}
    echo 'readonly R=1; shopt -s nullglob; echo $R' > r.sh; bash r.sh; bash r.sh; echo *.no""": (
        "23 a\n3\n2\nv\n1\n1\n*.no\n"
    ),
    r"""for v in 12 1a abc '[k]'; do
    case $v in *[!0-9a-k]*) echo odd;; [!0-9]*) echo text;; *) echo no;; esac; done
    case '[k]' in \[*\]) echo k;; esac; [[ 5 == [![:digit:]] ]] || echo digit
    jq -nc '[7] | to_entries'; tar cf x ./*.csv; mkdir d; tar xf x -C d --strip-components=1
    ls d""": ('no\nno\ntext\nodd\nk\ndigit\n[{"key":0,"value":7}]\na.csv\nb.csv\n'),
    """mkdir -p d/e .h; touch d/e/x.py d/.y .h/z.py; shopt -s globstar; echo **/*.py; echo **/
    echo d/**; echo ./**/e/x.py d/**/no; printf 'b\\na\\nc\\n' > f; { head -1; sort; } < f
    egrep -e a -e b f; cat f | grep -H c; grep -lZ a f c.txt | tr '\\0' '|'; grep -- -1 f
    mkdir g; cp f g; { grep -Zn a f; grep -rn a f; grep -rZ a g; } | tr '\\0' '|'
    { rg -HnF0 -e a -- g; rg -l0 a g; } | tr '\\0' '|'; echo
    tail -c1 f; printf 'a\\0b' | head -zn1 | tail -c +1 | wc -c; yes '' | head -3 | wc -l""": (
        "d/e/x.py\nd/ d/e/\nd/ d/e d/e/x.py\n./d/e/x.py d/**/no\nb\na\nc\nb\na\n"
        "(standard input):c\nf|2:a\n2:a\ng/f|a\ng/f|2:a\ng/f|\n\n2\n3\n"
    ),
    r"""j() { jq -c "$1" <<< '{"a": [{"n": 1, "b": "x"}, {"n": 2}], "c": 3, "d": 4}'; }
    j 'del(.a, .c)'; j '(.a[] | select(.n > 1).b) = "\u00e9\b"'
    j 'del(.a[] | select(.n == 1)) | del(.c, .d)'
    j '(.c, .d) |= . + 1 | .a = 0'; j '.a[-1].n += 5 | .a'
    j '.a |= map(.n) | .c //= 9 | del(.a[1:])'
    j '[path(.a[] | .n)]'; j '"a, b" | split(", *"; null)'; j '.a[1:] = [2]' 2>&1""": (
        '{"d":4}\n{"a":[{"n":1,"b":"x"},{"n":2,"b":"é\\b"}],"c":3,"d":4}\n{"a":[{"n":2}]}\n'
        '{"a":0,"c":4,"d":5}\n[{"n":1,"b":"x"},{"n":7}]\n{"a":[1],"c":3,"d":4}\n'
        '[["a",0,"n"],["a",1,"n"]]\n["a","b"]\n'
        "jq: parse error: a part of an array is not known here as a part of a path\n"
    ),
    r"""sed -nE '/^(a|c)\.(c|t)/p' *; sed -E '/b{1}|x/!d' *; sed -E '/(a)/,/(c)/s/\./-/' a.csv
    sed -E 's/a/(a)/;/\(a/s//X/' a.csv; printf 'a\0\nab\n' > f; grep -I a f *.csv; grep -Ihc c c.txt
    env -- printf '%s\n' x; grep -D a b.csv 2>&1""": (
        "a.csv\nc.txt\nb.csv\nc.txt\na-csv\nX).csv\nf:ab\na.csv:a.csv\n1\nx\n"
        "grep: invalid option -- 'D'\n"
    ),
    r"""j() { jq -nc "$1" 2>&1; }; j '1 + "a"'; j 'null * 2'; j '[1, "a"] | add'
    j '7.9 % 3.9, 5 % -2'; j 'null < false, [1] < [2], {"b": 1, "a": 2} == {"a": 2, "b": 1}
    , nan < 1'; j 'try ({} - 1) catch .'; j '{"a": 1, "b": 2} | add'
    j '"ab" * 2, [true] | add? // 0'; j 'null | add'
    j '[{"a": 1, "b": 2}, {"b": 2, "a": 1}] | unique, (group_by(.) | length)'""": (
        'jq: parse error: number (1) and string ("a") cannot be added\n'
        "jq: parse error: null (null) and number (2) cannot be multiplied\n"
        'jq: parse error: number (1) and string ("a") cannot be added\n'
        '1\n1\ntrue\ntrue\ntrue\ntrue\n"object ({}) and number (1) cannot be subtracted"\n'
        "3\n0\ntrue\njq: parse error: Cannot iterate over null\n"
        '[{"a":1,"b":2}]\n1\n'
    ),
    # statuses, redirections, traces
    """false; x=1; echo $?; x=$(exit 3) y=2; echo $?; false; $none; echo $?; false; a=(1 2); echo $?
    set -e; f() { for x in 1 2; do [[ $x == 1 ]] && continue; y=$x; done; echo $y; }; f
    seq 3 > n; while read l; do [ $l = 2 ] && z=$l; done < n; echo $z
    while :; do if ((++i > 2)); then break; fi; [ $i = 9 ] && :; done; echo $i
    exec echo end; echo not""": "0\n3\n0\n0\n2\n2\n3\nend\n",
    """mkdir d; (cd d; pwd) > f; { cd d; ls; } > g; cat ../f ../g; cd ..; base64 -d <<< aGk=
    { echo 1 > no/x; } 2>&1; echo $?; cat d 2>&1; cat <<< a+=b""": (
        "/app/d\nhibash: no/x: No such file or directory\n1\ncat: d: Is a directory\na+=b\n"
    ),
    """mkdir -p p q; echo 'X = 1' > p/m_x.py; echo 'Y = 2' > q/m_y.py
    PYTHONPATH=p:q python -c 'import m_x, m_y; print(m_x.X + m_y.Y)'; pip show no-such 2>&1""": (
        "3\npip: the package no-such is not there\n"
    ),
    "bash -c 'exec > >(tee l) 2>&1; echo a; exit 3'; echo $?; cat l": "a\n3\na\n",
    """{ set -x; x=$(echo a 2>&1); echo "$x"; cat no 2> /dev/null; set +x; } 2>&1""": (
        "a\n+ echo a\n+ x=a\n+ echo a\n+ cat no\n+ set +x\n"
    ),
    """trap 'echo "$? at $LINENO: $BASH_COMMAND"' ERR
    trap "echo 'bye'" EXIT; trap 'x' 2; trap; trap - INT; trap -p INT
    f() { false; return 4; }; f || echo or
    f
    if false; then :; fi; false || true; ! true; x=$(false; echo y)
    (exit 3); [[ a == b ]]; for i in 1; do false; done; true | false
    set -eE
    f
    echo not""": (
        "trap -- 'echo '\\''bye'\\''' EXIT\ntrap -- 'x' SIGINT\n"
        "trap -- 'echo \"$? at $LINENO: $BASH_COMMAND\"' ERR\nor\n4 at 4: f\n"
        "3 at 6: (exit 3)\n1 at 6: [[ a == b ]]\n1 at 6: false\n1 at 6: true | false\n"
        "1 at 3: false\nbye\n"
    ),
    r"""f() { local x=1; if [ $x = 1 ]; then echo "<$x>" > o; fi; }; declare -f f > l
    unset -f f; . ./l; f; cat o; printf '%4c|%-3b|%5b|\n' xy 'a' 'b\tc'; echo $((EPOCHSECONDS>>30))
    [[ $EPOCHREALTIME == *.?????? ]] && echo t; trap -p DEBUG 2>&1""": (
        "<1>\n   x|a  |  b\tc|\n1\nt\ntrap: DEBUG is not known here\n"
    ),
    """seq 9999 > n; for s in 1kB 1K 2KiB 1b 1MB; do head -c $s n | wc -c; done
    head -c 1x n 2>&1; awk 'BEGIN {print 010 + 0x10}'; cut -d ab -f1 n 2>&1; cmp -l n n 2>&1""": (
        "1000\n1024\n2048\n512\n48888\nhead: invalid number of bytes: '1x'\n24\n"
        "cut: the delimiter must be a single character\ncmp: the option -l is not known here\n"
    ),
    r"""j() { jq -nrc "$@"; }; j -a '"é😀"'; j '[1, {}] | @text, @html'; j '["a\\b"] | @tsv'
    j 'label $o | 1, break $o, 2'; j '[{"a": [1]} | tostream]'; j '1e1000'; j -j '"a", "b"'
    j '[{}] | @csv' 2>&1""": (
        "\\u00e9\\ud83d\\ude00\n[1,{}]\n[1,{}]\na\\\\b\n1\n"
        '[[["a",0],1],[["a",0]],[["a"]]]\n1.7976931348623157e+308\nab'
        "jq: parse error: object ({}) cannot be formatted for csv output\n"
    ),
    """touch -d @9 a.csv; mkdir d; cp -a a.csv d; cp -rp d /tmp/e; stat -c %Y d/a.csv /tmp/e/a.csv
    rm -r /tmp/e; cp -t d b.csv; mv -t d c.txt; ls d; cp a.csv no/x 2>&1; mv a.csv no/ 2>&1
    cp d/c.txt .; ln -s none l; ln -s d m; rm l m; ls; umask; nohup nice echo n
    ln -s c.txt d/l; cp -r d e; readlink e/l; cp -r d/l e; cp e/l e/f; ls -F e; rm -r e d/l
    bash -n <<< 'if' > /dev/null 2>&1; echo $?; echo 'echo $2' | bash -s -- 1 2; sha1sum a.csv > s
    rm a.csv; sha1sum -c s 2> /dev/null""": (
        "9\n9\na.csv\nb.csv\nc.txt\n"
        "cp: cannot create regular file 'no/x': No such file or directory\n"
        "mv: cannot move 'a.csv' to 'no/': No such file or directory\na.csv\nb.csv\nc.txt\nd\n"
        "0022\nn\nc.txt\na.csv\nb.csv\nc.txt\nf\nl@\n2\n2\na.csv: FAILED open or read\n"
    ),
    """TZ=Asia/Tokyo date -d '1970-01-02 09:00' '+%s %Z %:z'; date -d '2024-01-01 10:00 EST' +%T
    TZ=Asia/Tokyo date -d '1970-01-01 UTC + 9 seconds' +%T
    TZ=No/Where date 2>&1; od -A x -t x1z <<< ab; echo '1.5 * 2.25; 1.10 * 1.10; 2^-1; sqrt(2.25)
    123456789.123456789123 * 2; 08 + 1; obase = 16; 255; ibase = 2; 11' | bc
    xz -k a.csv; xzcat a.csv.xz; bzip2 a.csv; bzcat *.bz2
    mkdir d; touch d/x.pyc d/y; zip -qr z d -x '*.pyc'; unzip -l z.zip | grep -c d/
    echo new > d/y; unzip -n z; cat d/y""": (
        "86400 JST +09:00\n15:00:00\n09:00:09\ndate: the time zone 'No/Where' is not known here\n"
        "000000 61 62 0a                                         >ab.<\n000003\n"
        "3.37\n1.21\n0\n1.50\n246913578.246913578246\n9\nFF\n3\na.csv\na.csv\n2\nnew\n"
    ),
    r"""sort -g <<< $'nan\n5\nabc\n-inf\n1e1x\n4'; sort -C <<< $'b\na' || echo no
    cut -c 2-1 a.csv 2>&1; cut -f0 a.csv 2>&1; echo abc > d; wc -L a.csv d
    grep -r a d no 2>&1; echo $?; grep -P '(?i)ABC' d; sed 's/a/\x42\x26/' d""": (
        "abc\nnan\n-inf\n4\n5\n1e1x\nno\n"
        "cut: '2-1' has a place before the first, or a range that decreases\n"
        "cut: '0' has a place before the first, or a range that decreases\n"
        " 5 a.csv\n 3 d\n 5 total\nd:abc\ngrep: no: No such file or directory\n2\nabc\nB&bc\n"
    ),
    r"""printf 'a-1\nhit\nx: y\n\n' > f; cp f f-2; grep -ZnC1 hit f f-2 | tr '\0' '|'
    rg -0 --context=1 hit f-2 | tr '\0' '|'; grep -C hit f 2>&1""": (
        "f|1-a-1\nf|2:hit\nf|3-x: y\n--\nf-2|1-a-1\nf-2|2:hit\nf-2|3-x: y\n"
        "f-2|a-1\nf-2|hit\nf-2|x: y\ngrep: hit: invalid context length argument\n"
    ),
}
"""Scripts, and what bash prints for them; the soak runs just-bash's own cases."""
