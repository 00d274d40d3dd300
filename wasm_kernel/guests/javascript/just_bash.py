"""Replaces parts of just-bash for the shell's guest.

just-bash is made for an engine that compiles JavaScript. In this guest's interpreter a loop over
the characters of a text takes some hundred nanoseconds for each, and a promise some microseconds.
The texts that begin and end a part are those of the one file that `pyproject.toml` pins.
"""

from __future__ import annotations

import re

from wasm_kernel.errors import BundleError
from wasm_kernel.guests.javascript import just_bash_jq

_BYTES = b"""
import {utf8ByteLength as _, textOfLatin1 as ue, latin1OfText as Dn, latin1OfBytes as Q3, mixed}
from "wasm-kernel:bytes";
"""
_REGEX = b"""
import {createUserRegex as ie, longestFirst} from "wasm-kernel:regex";
import {filledIn} from "wasm-kernel:pieces";
import {exactOf, inverted, negated, numberOf} from "wasm-kernel:numbers";
import {printed, reckon, whole} from "wasm-kernel:numbers";
import {changed, entriesOf, nextPlace, once, ownAttributes} from "wasm-kernel:pieces";
import {reasonOf, replaceFile, substitutions} from "wasm-kernel:pieces";
import {inside as pairsIn, kindOf, pathsOf, removed, updated} from "wasm-kernel:paths";
import {keyOf, remainder, unfit} from "wasm-kernel:operators";
import {written} from "wasm-kernel:times";
import {runErrorTrap, runJob, runWithTrap, substituted, timesOf, waited} from "wasm-kernel:pieces";
var Rr,N1=L(()=>{"use strict";"""

_COUNTS = b"""consumeLimited(){return 0}consumeInput(){return 0}
consume(){this.assertUsable();return 0}reserveBytes(){return{release(){}}}
appendOutput(){return 0}accountResult(t){return t}relinquishOutput(){}"""

_KEPT = b"""n&&(t==="stdout"?this.stdoutChunks:this.stderrChunks).push(n)}"""
_APPENDED = b"""n&&this.stdoutChunks.push(n);t.stderr&&this.stderrChunks.push(t.stderr)}"""

_LINE = (
    b"""{let q=b.indexOf(x);let k=q<0?b:b.slice(0,q);if(s||!k.includes("\\\\"))A(k),F=k.length}"""
)

_LENGTH = b"i=Bt(e,s)?.elements.size||xe(e,s).length;return i>0?String(i)"
_LENGTH_FIRST = rb"""if(s?.type==="Length"&&/\[[@*]\]$/.test(r))return q7(e,r,"");
if(s?.type==="Length"&&/^[@*]$/.test(r))return We(e,"#");let o=s&&(s.type"""

_SEGMENTS = b'r=t.split("/").filter((c,k,all)=>c!==""||(k>0&&k===all.length-1))'
_LAST_SEGMENT = b'r.length===0)return[n];if(r[0]==="")return[`${n}/`];'
_TEXT = rb"""readTextCommand(t,n,r){
const blanks=()=>{for(;/[ \t]/.test(this.peek()||"");)this.advance()};blanks();
if(this.peek()==="\\"){this.advance();
if(/^[ \t]*\n/.test(this.input.slice(this.pos))){blanks();this.advance();
if(/^\\[ \t]/.test(this.input.slice(this.pos)))this.advance()}}"""

_TESTED = b"""let d=this.ctx.state.inCondition,f;
this.ctx.state.inCondition=d||c.negated||l<t.pipelines.length-1;
try{f=await this.executePipeline(c)}finally{this.ctx.state.inCondition=d}"""

_RECKON = b"let r=reckon(n,e,t);if(r!==undefined)return r;"
_RECKON_AND_SET = b"let r=reckon(n.slice(0,-1),e,t);if(r!==undefined)return r;"
_SUM = b"let p=a(),h=exactOf(f),m=exactOf(p)"
_PRODUCT = b"""let p=l(),h=exactOf(f),m=exactOf(p);
if(Number.isNaN(h)||Number.isNaN(m))throw new Error("non-integer argument");
if(d!=="*"&&m===0n)throw new Error("division by zero");
f=String(d==="*"?h*m:d==="/"?h/m:h%m)}"""
_COMPARED = rb"""async function i4(e,t){if(t=t.trim(),t==="")return 0;
if(/^-?[1-9]\d*$/.test(t))return whole(t);"""
_SPANS = rb"await (\w+\(e,[a-z]\.(offset|length)\.expression\))"
_MAPS = rb'(declare -A \$\{\w\}=\(\$\{\w\.join\(" "\)\})\)'
_LOOPS = rb"(\w)=(\w)\.exitCode\}\}(catch\(\w\)\{let \2=Xo\([^;]*;if\(\w\.replace\([^)]*\)),"
_STEP = b"a=numberOf(await We(e,o)),l=reckon(t.operator[0],a,1)"
_WHOLE_T = rb"if(/^-?\d+$/.test(t.trim()))return whole(t.trim());"
_WHOLE_E = b"return/^\\d+$/.test(e)?whole(e):parseInt(e,10)"
_WHOLE_HEX = b"return/^..[0-9a-f]+$/i.test(e)?whole(e):NaN"
_WHOLE_R = rb"if(/^-?\d+$/.test(r.trim()))return whole(r.trim());"

_ARITHMETIC = rb"""const exprOf=once(t=>Me2(new be(),t).expression);
function Me(e,t){if(!/\$[{(]|`/.test(t))return Me2(e,t);
return{type:"ArithmeticExpression",expression:{type:"ArithText",word:e.parseWordFromString(t,!1,!1,!1,!0)}}}
function Me2(e,t){let n=uk(t),{expr:r,pos:s}="""
_NESTED = b"""case"ArithText":return await s(exprOf(await _e(e,t.word)));
case"ArithNested":return await s(t.expression);"""
_SUBSCRIPT = rb"""async function hd(e,t){let r=/^(["'])([^]*)\1$/.exec(t);
if(r?.[1]==="'")return r[2];
return await _e(e,new be().parseWordFromString(r?r[2]:t,!1,!1,!1,!0))}"""
_JOINED = b"""f.length>0)
return f.map(([,p])=>p).join(a==="*"?(e.state.env.get("IFS")??" ").slice(0,1):" ")"""
_NAME = b"""let names=t.name.parts.every(N=>N.type==="Literal")
?[await _e(this.ctx,t.name)]:(await dr(this.ctx,t.name)).values,
u=names[0]??"",f=names.slice(1),d=f.map(()=>!1),p=(N,I)=>"""

_KEYED = rb"""if(E=/^(\[.+?\]=)([^]*)$/.exec(o[S])??o[S],Array.isArray(E))
A=/^\w*$/.test(E[2])?E[0]:`${E[1]}"${E[2].replace(/[\\"]/g,"\\$&")}"`;else A="""
_RETURNED = b"else if((I instanceof he||I instanceof _t)&&t.commands"
_SHIFT = b"""this.pendingHeredocDelimiterMode=
this.dparenDepth>0?void 0:!1,this.make"""
_DECLARED = rb"""const known=r?.parts.length===1?r.parts[0].value:"";
if(/^(declare|local|typeset)$/.test(known)&&!s.some(w=>/^-\w*[inpr]/.test(w.parts[0]?.value))){
const own=f.replace("+","");(s.own??=[]).push(Y.assignment(own,null,f!==own,d));
s.push(Y.word([Y.literal(own)]))}
else{let p=d.map(m=>Gf(e,m)),h=`${f}=(${p.join(" ")})`;s.push(e.parseWordFromString(h,!1,!1,!0))}"""
_GROUP = b"""let o=Y.simpleCommand(r,s,n,i);o.line=t;if(!s.own)return o;
const line=c=>Y.pipeline([Object.assign(c,{line:t})]);
const set=line(Y.simpleCommand(null,[],s.own,[]));
const ok=line(Y.simpleCommand(Y.word([Y.literal("true")])));
return{type:"Group",body:[Y.statement([line(o)]),Y.statement([set,ok],["||"])],redirections:[]}"""
_CASES = rb"""async function dr(e,t){const[q,other]=t.parts[0]?.parts??[],op=q?.operation;
const m=t.parts.length===1&&!other&&op?.type==="CaseModification"&&/^(\w+)\[@\]$/.exec(q.parameter);
if(m){const values=[];for(const[,v]of xe(e,m[1]))values.push(await K7(e,v,op,fr,jl));
return{values,quoted:!0}}"""
_CASE = rb"""case"CaseModification":{let d;if(/\[[@*]\]$/.test(r)){d=[];
for(const[,v]of xe(e,r.slice(0,-3)))d.push(await K7(e,v,s,fr,jl));d=d.join(" ")}
else d=await K7(e,a,s,fr,jl)"""
_EXPR = b"""{n++;let d=c(),h=ie(`^${fu(d)}`).match(f);
f=h?h[1]??String(h[0].length):d.includes("\\\\(")?"":"0\""""
_CHANGE = b"""case"change":{t.deleted=!0;const q=e.address;
const isInside=q?.end===void 0||q.negated?!1:typeof q.start=="number"&&typeof q.end=="number"
?t.lineNumber<q.end:t.lineNumber<t.totalLines&&t.rangeStates.get(pu(q))?.active;
if(!isInside)t.changedText=e.text;break}"""
_NTH = b"""if(t.substitutionMade=!0,o.nthOccurrence>1||o.nthOccurrence&&!o.global){"""
_SIZES = b"""case"size":{
const n={c:1,k:1024,M:1048576,G:1073741824,b:512}[e.unit],u=Math.ceil(t.size/n),v=e.value,
r=e.comparison==="more"?u>v:e.comparison==="less"?u<v:u===v;
return{matches:r,pruned:!1,printed:!1}}"""
_NOT = b"""e.type==="not"?za(e.expr).map(a=>{
if(a.type==="exec"&&!a.batchMode)throw new Error("-exec behind ! is not known here");return a})"""
_EXEC = b"""F.exitCode!==0&&(skipped=U);break}}}for(let[M,P]of T){
if(M.type!=="exec"||!t.exec||P.length===0)continue;let U=[];for"""
_EFFECTS = b"""let T=new Map,skipped;
for(let M of f){let{action:P,path:U}=M;if(U===skipped)continue;"""
_UNKNOWN = b"""case"y":c=t.isDirectory?"d":t.isFile?"f":"l",s++;break;
default:throw new Error(`the directive %${l} of -printf is not known here`)}r+=Ys"""
_SUBSTITUTED = rb"""if(this.peek()!==r)
return{type:le.ERROR,value:"unterminated `s' command",line:t,column:n};
this.advance();let a="";for(;/[gipI\d]/.test(this.peek()||"");)a+=this.advance();
if(/[^\s;}#]/.test(this.peek()||""))
return{type:le.ERROR,value:`the flag ${this.peek()} of s is not known here`,line:t,column:n};
return{type:le.SUBSTITUTE,"""
_PRINTED = b"""t.lineNumberOutput.push(t.patternSpace)}}
catch(b){t.quit=!0;t.exitCode=1;t.errorMessage=`sed: ${b.message}`}break}"""
_SPAN = b"""p.startLine=t,s.set(d,p),
(typeof a=="number"?a<=t:(a.pattern===void 0||o===0)&&ci(a,t,n,r,i))&&(p.active"""

_PRINTF = b"""switch(t){case"d":case"i":case"o":case"u":case"x":case"X":
case"e":case"E":case"f":case"F":case"g":case"G":{const{value,isRight}=printed(e,n);
return{value,parseError:!isRight,parseErrMsg:isRight?"":`printf: ${n}: invalid number\\n`}}"""

_FULL = b"""replaceFile(t.fs,g,w.output))}catch(b){if(/ENOSPC/.test(b.message))
return{stdout:"",stderr:`sed: couldn't write ${m}: No space left on device\n`,exitCode:4};"""

_SUBSHELL = b"""l=>
runWithTrap(e,e.state,()=>kO(e,t,l.stdin??n,r,s||l.stdin!==void 0),or,he)"""
_SCRIPT = b"await(s=>runWithTrap(s,m,()=>s.executeScript(x),or,he))(new Yo(E,m));"
_STATEMENT = b"async executeStatement(t){if(t.background)return runJob(this,t);"
_OWN = b"...ownAttributes(this.state),functions:new Map(this.state.functions),"
_SAFE = b"""q=t.pipelines[s]?.commands??[],
a=this.ctx.state.errexitSafe&&q.length===1&&q[0].type[0]!=="S";"""
_REFERRED = b"""if(rt(e,n))n=cn(e,n)||n;
let a=e.state.associativeArrays?.has(n),l=Bt(e,n),"""
_GLOB_OPTIONS = b"this.failglob=s.failglob,this.noCase=s.noCase,"
_LEFT_OF_INPUT = b"""const q=A.internalStdinConsumed;
if(!r&&q!==undefined&&i.state.groupStdin!==undefined)i.state.groupStdin=d.slice(q);
return{...A,internalStdinConsumed:"""
_RECURSIVE = b"""async expandRecursive(t){
if(t.startsWith("./"))return(await this.expandRecursive(t.slice(2))).map(p=>`./${p}`);
const place=p=>this.fs.resolvePath(this.cwd,p);
if(!t.includes("**")&&/[*?[(]/.test(t))return this.expandSimple(t);
if(!t.includes("**"))return(await this.fs.exists(place(t)))?[t]:[];"""
_LEVELS = rb"""o=t.slice(r+2).replace(/^\//,"")||(t.endsWith("/")?"*/":"*");
const isBelow=t.endsWith("**")&&s!=="."&&(await this.fs.stat(place(s)).catch(()=>0)).isDirectory;
await this.walkDirectoryMultiGlobstar(s,o,n,true);if(isBelow)n.push(`${s}/`);
return[...new Set(n)].sort()}"""
_SHOWN_FOLDERS = rb"""async walkDirectoryMultiGlobstar(t,n,r,isFirst){
if(!isFirst&&!this.dotglob&&/(^|\/)\.[^\/]*$/.test(t))return;"""
_BRACKET = rb"""else if(s==="["){
const i=/^\[[!^]?\]?(?:\[:\w+:\]|\\[^]|[^\]])*\]/.exec(e.slice(r))?.[0];
if(i){n+=i.replace(/^\[[!^]/,"[^");r+=i.length-1}else n+='\\['"""
_NO_CASE = b"noCase:e.state.shoptOptions.nocaseglob,globskipdots:e.state"
_MAPFILE = rb"""function Ep(e,t,n){t=t.flatMap(w=>{
const[,f,o,v]=/^-(t?)([dnOsuCc])([^]*)$/.exec(w)??[];
return o?[...(f?["-t"]:[]),`-${o}`,...(v?[v]:[])]:[w]});
if(t.includes("-C"))return Q("","mapfile: -C is not known here\n",2);"""
_DECLARED_MAP = rb"""function sp(e){return ds(e)}
function ip(e){return/^[\w.+\/:@%-]+$/.test(e)?e:ds(e)}"""
_FOLDED = b"""?r&&l>=0?(i.push(o.slice(0,l+1)),o=o.slice(l+1)+u,a=a-c-1+f,l=-1,c=0)
:(i.push(o),o=u,a=f,l=-1,c=0):(o+=u,a+=f);if(u===" "||u==="\\t")l=o.length-1,c=a-f"""
_LONGEST = b"""default:n=T1(e),n=Zb(n);break}t.mode!=="perl"&&(n=longestFirst(n));"""
_SUBSTITUTED_ONCE = b'case"CommandSubstitution":{substitutions.count+=1;let s=B7('
_BEGUN = b'this.ctx.state.expansionStderr="";const begun=substitutions.count;let s=await t3('
_TARGET = b'e.isWord()||e.check(v.ASSIGNMENT_WORD)||e.error("Expected redirection'
_STAYS = b"""if(this.ctx.state.errexitSafe=
this.ctx.state.inCondition?this.ctx.state.errexitSafe:o||i||a,"""
_CAUGHT = b"""r!==0&&s===t.pipelines.length-1&&!i&&!this.ctx.state.inCondition&&!a){
const w=await runErrorTrap(this,t.pipelines[s],or,w7).catch(x=>{n.prependTo(x);throw x});
n.appendResult(w,w.stdout);if(!this.ctx.state.options.errexit)return n.build(r);"""
_TRACED = b'let A=o+x,X=A&&await fs(this.ctx,Q("",A,0),[]);if('
_ENDED = b"""g.finish(),E)throw E;
if(A)S={...S,stdout:X.stdout+S.stdout,stderr:X.stderr+S.stderr};
if(u==="exec")throw new he(S.exitCode,zr(S),S.stderr);"""
_FUNCTION = rb"""function r3(e,t){
const q=t.body.type==="Group"?t.body.body.map(y7).join(";\n"):w7(t.body);
return`${e} is a function\n${e} () \n{ \n${q.replace(/^/gm,"    ")}\n}\n`}"""
_FUNCTIONS = b"""let N=!0,R="";for(let I of w){const q=e.state.functions.get(I);
if(q)R+=r3(I,q).replace(/.*\\n/,"");else N=!1}return Q(R,"",N?0:1)"""
_OPENED = b'return{error:Q("",`bash: ${t}: ${reasonOf(a)}'
_EXITED = b"""catch(a){const q=await Ad(this.ctx,s).catch(()=>{});
if(q&&"stdout"in a){a.stdout+=q.stdout;a.stderr+=q.stderr}throw a}"""
_DELIVERED = b"""try{await(A.append?e.fs.appendFile(A.path,O,R):e.fs.writeFile(A.path,O,R))}
catch(q){c+=`${o}: write error: ${reasonOf(q)}\n`;u=1}"""
_SPECIAL = b"""case"BASH":return"/bin/bash";
case"EPOCHSECONDS":return String(Math.floor(Date.now()/1e3));
case"EPOCHREALTIME":return(Date.now()/1e3).toFixed(6);case"BASH_VERSION":return T6"""

_TIMES = b"""sys 0.00
`:e.state.env.has("TIMEFORMAT")?E=timesOf(e.state.env.get("TIMEFORMAT"),y):E=`
"""
_PRESERVED = b"""async crossMountCopy(t,n,r){
const s=await this.lstat(t);await this.copyAcross(t,n,r,s);
if(r?.preserveTimestamps&&!s.isSymbolicLink)await this.utimes(n,s.mtime,s.mtime)}
async copyAcross(t,n,r,s){"""

# for each part: the text at its beginning; the text behind it, if the part is longer than its
# beginning; and the code that replaces it
_PARTS = (
    # conversions of bytes, by the host
    (b"function _(e){let t=0;", b"async function Wt(e,t)", _BYTES),
    (b"(t=e.executionScope.accountResult(t", b"(t=e.executionScope.accountResult(mixed(t,n)"),
    # regular expressions of the interpreter in place of re2js
    (b"function Tb(e){let t=0;", b"Rr=class{_regex;", _REGEX),
    # the guess whether a script's output, which is text, is bytes
    (b"function $3(e){", b"function XO(", b"function $3(e){return e}"),
    # guards against scripts, with a promise for each expression: the sandbox is the guard
    (b"function vt(e,t,n){", b"var br=L(", b"function vt(){}function sn(e,t,n,r){return r()}"),
    # guards around each command: copies of all that it may use, a timer, counts of its output
    (b"function c3(e,t){", b"async function pO(", b"function c3(e){return{context:e,revoke(){}}}"),
    (b"let o=s.remainingTimeMs()", b"if(!i)return e();let o=s.remainingTimeMs()"),
    (b"consumeLimited(t,n,r,s=t){", b"enterDepth(t,n=", _COUNTS),
    (b"append(t){let n=_(t);", b"repeat(t,", b"append(t){t&&this.chunks.push(t);return this}"),
    (b"let r=_(t)+_(n);r>this.ctx", b"t&&this.stdoutChunks", b""),
    (b",this.totalBytes+=r}", b"}"),
    (b"let i;try{i=this.scope.appendOutput(t,n", b"prependTo(t){t instanceof yt", _KEPT),
    (b'let r=t.stdoutKind==="bytes"||t.stdout', b"build(t,n){return{stdout", _APPENDED),
    # the advice to use its build for Node, about commands that this one lacks
    (b"if(!c)return n4(t)?", b"if(!c)return false?"),
    # ranges such as {1..20000}
    (b"var Uo=1e4", b"var Uo=1/0"),
    (b"maxStringBytes:10*1024*1024};function Ll(", b"maxStringBytes:1/0};function Ll("),
    (b"var Hw=1e5", b"var Hw=1/0"),
    # counts of lines by loops over all characters, for limits that the shell does not have
    (b"I=1;for(let D=0;D<e.length;", b"let T=e.split(`", b"I=1;"),
    (b"let O=E.length>0?1:0;for(", b"let R=E.split(`", b""),
    (b"-_(e.output)", b""),
    # `sed`: translations of a pattern, for each line; letters such as `\\U` in a replacement
    (b"function fu(e){", b"var fu=once(fuOf);function fuOf(e){"),
    (b"function du(e){", b"var du=once(t=>longestFirst(duOf(t)));function duOf(e){"),
    (rb'`,this.advance()):o+="\\"):l', rb'`,this.advance()):o+="\\\\"):l'),
    # `sed -E`: patterns that choose lines
    (b"{pattern:t.pattern||t.value}", b"{pattern:t.pattern||t.value,isLong:this.extendedRegex}"),
    (b"let o=du(fu(i));return ie(o)", b"let o=du(e.isLong?i:fu(i));return ie(o)"),
    (b"function hu(e,t,n){", b"function sm(e,t,n)", b"var hu=filledIn;"),
    # `sed -i`: a full disk
    (b"t.fs.writeFile(g,w.output))}catch(b){", _FULL),
    # `printf` of numbers
    (b'switch(t){case"d":case"i":{let o=aa(n)', b'case"c":{if(n==="")return', _PRINTF),
    # `((n>=2))`
    (b'!(c==="="&&', b'!(c[0]==="="&&'),
    # `array+=(...)`: a copy of all elements, and a sort of them to find the last one
    (b"c=l?ln(l):void 0,", b"c=l&&!s?ln(l):l,"),
    (b"=xe(e,t);if(a.length>0)o=", b"else{let", b"=Bt(e,t);if(a?.elements.size>0)o=nextPlace(a);"),
    # arrays: their sorted elements and last place, which each use of them looked for
    (b"i.elements.set(o,r)}", b"i.elements.set(o,r);changed(i,+o)}"),
    (b"return Bt(e,t)?.elements.delete(", b"changed(Bt(e,t));return Bt(e,t)?.elements.delete("),
    (b"(e,t){return Array", b"function kt(", b"(e,t){return entriesOf(Bt(e,t)).map(([i])=>i)}"),
    (b"function kt(e,t){", b"function kt(e,t){changed(Bt(e,t));"),
    (b"Lt(e,t).map(s=>[s,Xe(e,t,s)??", b"}function lr(e,t){", b"entriesOf(Bt(e,t))"),
    (b"i=xe(e,s);return i.length>0?String(i.length)", _LENGTH),
    (
        b"m=xe(e,h);return String(m.length)",
        b"m=Bt(e,h)?.elements.size||xe(e,h).length;return String(m)",
    ),
    (b"let o=s&&(s.type", _LENGTH_FIRST),
    # $BASH, $EPOCHREALTIME, $EPOCHSECONDS
    (b'case"BASH_VERSION":return T6', _SPECIAL),
    (
        b'"SECONDS","BASH_VERSION","!"',
        b'"SECONDS","BASH","EPOCHREALTIME","EPOCHSECONDS","BASH_VERSION","!"',
    ),
    # patterns that end in a slash: folders alone
    (b'r=t.split("/").filter(c=>c!=="")', _SEGMENTS),
    (b"r.length===0)return[n];", _LAST_SEGMENT),
    # `grep -r`: names below `.`, hidden files
    (b'{if(Un(o),h.startsWith("."))continue;let m=e==="."', b'{Un(o);let m=e===""'),
    # `grep -o`: matches without text, behind which a pattern already goes on
    *[(b",ge[0].length===0&&t.lastIndex++", b"")] * 2,
    (b",ne[0].length===0&&t.lastIndex++", b""),
    (b"N(D,se+tt)", b"tt&&N(D,se+tt)"),
    (b"N(P,Ie+je)", b"je&&N(P,Ie+je)"),
    # `sed`: a text behind `i\\`
    (b"readTextCommand(t,n,r){", b'let i="";for(;', _TEXT),
    # `find`: sizes are rounded up; `{}` inside of a word; a command that fails ends a file's turn
    (b'case"size":{let n=e.value;switch(e.unit)', b'case"perm":{let n=t.mode&511', _SIZES),
    (b"B=P.command.map(z=>", b",F=await", b'B=P.command.map(z=>z.split("{}").join(U))'),
    (b'e.type==="not"?za(e.expr)', _NOT),
    (b"let T=new Map;for(let M of f){let{action:P,path:U}=M;", _EFFECTS),
    (b"depth:V.depth,startingPoint:M", b"depth:V.depth,startingPoint:M,isFile:V.isFile"),
    (b"F.exitCode!==0&&(d=F.exitCode);break}}}", b"(let F of M.command)", _EXEC),
    (b"B.exitCode!==0&&(d=B.exitCode)}return p?", b"B.exitCode!==0&&(d=1)}return p?"),
    (b"default:r+=`%${i!==0||o!==-1?`", b"(c,i,o)}else r+=n[s]", _UNKNOWN),
    # `sed`: a pattern ends a range from the next line on; an `s` without an end, or other flags
    (b"p.startLine=t,s.set(d,p),ci(a,t,n,r,i)&&(p.active", _SPAN),
    (b'this.peek()===r&&this.advance();let a="";for(', b"value:`s${r}", _SUBSTITUTED),
    (b"t.lineNumberOutput.push(t.patternSpace)}}catch{}break}", _PRINTED),
    # `read`: a loop over the characters of a line
    (b"R=0;let F=0;for(;F<b.length;)", b"R=0;let F=0;" + _LINE + b"for(;F<b.length;)"),
    # `set -e` in functions before `||`, `&&` and behind `!`; `set -u` and "${x:-y}"
    (b"let f=await this.executePipeline(c);", _TESTED),
    (b"c=await Cr(e,l),u=await We(e,l)", b"c=await Cr(e,l),u=await We(e,l,!1)"),
    # `expr`, `test` and `[[ -eq ]]` with large numbers
    (b"let p=a(),h=parseInt(f,10),m=parseInt(p,10)", _SUM),
    (b"let p=o(),h=parseInt(f,10),m=parseInt(p,10)", b"let p=o(),h=exactOf(f),m=exactOf(p)"),
    (b"let p=l(),h=parseInt(f,10)", b"else break}return f}function l(){let f=c", _PRODUCT),
    (b"n=Number.parseInt(e,10);return Number.isNaN(n)?{", b"t?-n:n,", b"n=whole(e);return{value:"),
    (b'async function i4(e,t){if(t=t.trim(),t==="")return 0;', _COMPARED),
    # `expr match` finds the beginning alone, and nothing stands before the first character
    (
        b"m=ie(p).match(d);return m?m[1]!==void 0",
        b"m=ie(`^${fu(p)}`).match(d);return m?m[1]!==void 0",
    ),
    (
        b"return d.substring(p-1,p-1+h)}if(f===",
        b'return p>0&&h>0?d.substring(p-1,p-1+h):""}if(f===',
    ),
    # `$((...))`: `${...}` and `$(...)` are put in before it is read; they ran in another shell
    (b"function Me(e,t){let n=uk(t),", b"=$i(e,n,0)", _ARITHMETIC.removesuffix(b"=")),
    (b'case"ArithNested":return await s(', b'case"ArithCommandSubst":{', _NESTED),
    (b"async function hd(e,t){let n=t,r=t.starts", b"At();Z();var Uo=", _SUBSCRIPT),
    # all elements as one text, in here-documents, here-strings and assignments
    (b'f.length>0)return f.map(([,p])=>p).join(" ")', _JOINED),
    # a command's name, as in `$command` and "$@", may be several words
    (b"let u=await _e(this.ctx,t.name),f=[],d=[]", b"{if(f.length>=this.ctx", _NAME),
    (b"m=t.name.parts.every(", b"m=names.length===0||t.name.parts.every("),
    # `return` in a pipe and in `$(...)`, `<<` in `((...))`
    (b"C)throw p;if(p instanceof he", b"C)throw p;if(p instanceof he||p instanceof _t"),
    (b"else if(I instanceof he&&t.commands", _RETURNED),
    (b"this.pendingHeredocDelimiterMode=!1,this.make", _SHIFT),
    # `local array=($(command))`, which is made of two commands; `"${array[@]^}"`
    (b"let p=d.map(m=>Gf(e,m)),h=`${f}=(", b"}else{let f=e.parseWordFromString(l", _DECLARED),
    (b"let o=Y.simpleCommand(r,s,n,i);return o.line=t,o", _GROUP),
    (b"r.set(p,x),c&&i(p)}", b"r.set(p,x),i(p),e.state.arrays?.delete(p)}"),
    (b"async function dr(e,t){", _CASES),
    (b'case"CaseModification":{let d=await K7(', b";return ss(d", _CASE),
    # `declare -A map=([key]="value of words")`
    (b"E=o[S],A;/^\\[.+\\]=/.test(E)?A=E:", b"E,A;" + _KEYED),
    # `expr text : 'basic \\(pattern\\)'`; `sed`: `c` for a range, `s///2g`
    (b"{n++;let d=c(),h=ie(`^${d}`).match(f);", b"}return f}function c(){", _EXPR),
    (b'case"change":t.deleted=!0', b'case"hold":', _CHANGE),
    (b"if(t.substitutionMade=!0,o.nthOccurrence&&", b"let d=0,p=o.nth", _NTH),
    (b"if(d++,d===p)", b"if(d++,d===p||d>p&&o.global)"),
    # arithmetic in 64 bits
    (b"function qN(e,t,n){", b"function qN(e,t,n){" + _RECKON),
    (b"function Yw(e,t,n){", b"function Yw(e,t,n){" + _RECKON_AND_SET),
    (b'case"-":return-e;case"+":return+e;', b'case"-":return negated(e);case"+":return e;'),
    (b'case"~":return~e;default:', b'case"~":return inverted(e);default:'),
    (b"let r=Number.parseInt(t,10);if(!Number.isNaN(r)&&/^-", b"let s=t.trim()", _WHOLE_T),
    (b"let s=Number.parseInt(r,10);if(!Number.isNaN(s)&&/^-", b"let i=r.trim()", _WHOLE_R),
    (b"let t=Number.parseInt(e,10);return t>Num", b"}function V6(", _WHOLE_E),
    (b"let n=Number.parseInt(e.slice(2),16);", b'}if(e.startsWith("0")', _WHOLE_HEX),
    (b'c=Number.parseInt(l||"0",10)||0', b'c=numberOf(l||"0")'),
    (b"a=Number.parseInt(await We(e,o),10)||0,l=", b";return e.state.env.set(o", _STEP),
    # `trap COMMAND EXIT`
    (b"await new Yo(E,m).executeScript(x);", _SCRIPT),
    (b"l=>kO(e,t,l.stdin??n,r,s||l.stdin!==void 0)", _SUBSHELL),
    # `bash FILE`: `readonly` and the like are its own
    (b"functions:new Map(this.state.functions),", _OWN),
    # `&`, `wait`
    (b"async executeStatement(t){", _STATEMENT),
    (b'if(t==="wait")return Fe;', b'if(t==="wait")return waited(n);'),
    # `set -e` in `$(...)`, and after a function whose last command was not to end it
    (b"let p=await e.executeScript(t.body)", b"let p=await substituted(e,t.body)"),
    (b"a=this.ctx.state.errexitSafe;", _SAFE),
    # `set -e` behind a loop whose last command was not to end it
    (
        b"this.ctx.state.errexitSafe=!1;",
        b"this.ctx.state.errexitSafe&&=this.ctx.state.inCondition;",
    ),
    (b"if(this.ctx.state.errexitSafe=o||i||a,", _STAYS),
    # arrays behind references, `mapfile -d,`, `declare -p` of maps, `shopt -s nocaseglob`
    (b"let a=e.state.associativeArrays?.has(n),l=Bt(e,n),", _REFERRED),
    (b"function Ep(e,t,n){", _MAPFILE),
    (b"function sp(e){", b"function $4(", _DECLARED_MAP),
    (b"this.failglob=s.failglob??!1,", _GLOB_OPTIONS),
    (b"return ie(`^${n}$`)}", b"return ie(`^${n}$`,this.noCase?'i':'')}"),
    # `{ head -1; cat; }`: what `head` leaves of their standard input
    (b"return{...A,internalStdinConsumed:", _LEFT_OF_INPUT),
    # patterns of `case` and `[[`: `[!a]`, and quoted characters
    (rb'else if(s==="["){let i=e.indexOf("]",r+1);', b"}else/[", _BRACKET),
    (b"let u=await _e(e,c);Vw(c)&&(u=On(u));", b"let u=await qw(e,c);"),
    # `**`: folders as well, patterns of several parts behind it, and nothing hidden
    (b"async expandRecursive(t){", _RECURSIVE),
    (b'o=t.slice(r+2).replace(/^\\//,"");', b"async walkDirectoryMulti", _LEVELS),
    (b"async walkDirectoryMultiGlobstar(t,n,r){", _SHOWN_FOLDERS),
    # `grep -P '(?i)...'`
    (b"n=zb(n)", rb'n=zb(n.replace(/\(\?i\)([^]*)$/,"(?i:$1)"))'),
    # the longest match of `=~`; contexts of several files of `grep`; `fold -s`
    (b"o=oI(s),", b"o=longestFirst(oI(s)),"),
    (b"default:n=T1(e),n=Zb(n);break}", _LONGEST),
    (b"a||(z+=at.output)}", b"a||(z+=(z&&(w||y)&&!i?'--\\n':'')+at.output)}"),
    (b"?r&&l>=0?(i.push(o.slice(0,l+1))", b"}return o.length>0&&i.push(o)", _FOLDED),
    # the status of `x=1`, and of an empty command, is 0 without a `$(...)`
    (b'case"CommandSubstitution":{let s=B7(', _SUBSTITUTED_ONCE),
    (b'this.ctx.state.expansionStderr="";let s=await t3(', _BEGUN),
    *[
        (
            b"this.ctx.state.lastExitCode)",
            b'substitutions.count===begun?0:this.ctx.state["lastExitCode"])',
        )
    ]
    * 2,
    # a word such as `aGk=` behind `<<<`; a redirection that fails; the trace of `set -x`
    (b'e.isWord()||e.error("Expected redirection', _TARGET),
    (b"if(!s)throw a;return{error:Q(", b"\n`,1)}}return{entry:", _OPENED),
    (b"let A=o+x;if(A&&(", b"S=await fs(this.ctx,S,", _TRACED),
    (b"g.finish(),E)throw E;", _ENDED),
    # `(cd FOLDER; ...) > FILE`: the file lies in the folder before `cd`; a full disk
    (b"let d=()=>({targets:s,", b"let d=()=>({targets:Object.assign(s,{cwd:e.state.cwd}),"),
    *[(b"e.fs.resolvePath(e.state.cwd,E)", b"e.fs.resolvePath(r.cwd,E)")] * 3,
    (b"A.append?await e.fs.appendFile(A.path,O,R):", b"};if(h===m", _DELIVERED),
    # `{ exit; } > >(...)`: what the command in `>(...)` prints
    (b"catch(a){throw await Ad(this.ctx,s).catch(()=>{}),a}", _EXITED),
    # `trap COMMAND ERR`, `set -E`
    (b"this.ctx.state.options.errexit&&r!==0&&s===", b"let l=new Yt(r)", _CAUGHT),
    (b'["E",null]', b'["E","errtrace"]'),
    (b'["errtrace",null]', b'["errtrace","errtrace"]'),
    # `declare -f`, `type` of a function
    (
        b"let N=!0;for(let I of w)e.state.functions.has(I)||(N=!1)",
        b"}if(a&&w.length>0)",
        _FUNCTIONS,
    ),
    (b"function r3(e,t){", b"async function a3(", _FUNCTION),
    # `${x:?}`; times since 1970; the widths of `%c` and `%b`
    (
        b'`${t}: parameter null or not set`;throw new he(1,"",`bash: ${o}',
        b'`parameter null or not set`;throw new he(1,"",`bash: ${t}: ${o}',
    ),
    (b"{value:String.fromCharCode(l),", b'{value:E8(e.slice(0,-1)+"s",String.fromCharCode(l),r),'),
    (b"return{value:o.value,", b'return{value:E8(e.slice(0,-1)+"s",o.value,r),'),
    # `rm` of a link
    (
        b"if((await t.fs.stat(f)).isDirectory&&!r){l+=`rm:",
        b"if((await t.fs.lstat(f)).isDirectory&&!r){l+=`rm:",
    ),
    # `time` with `TIMEFORMAT`
    (b"sys 0.00\n`:E=`\n", _TIMES),
    # `cp -p`
    (b"t.fs.cp(b,y,{recursive:r})", b"t.fs.cp(b,y,{recursive:r,preserveTimestamps:i})"),
    (b"async crossMountCopy(t,n,r){let s=await this.lstat(t);", _PRESERVED),
    # files that are not there, or are folders
    (b"catch{o+=`tee: ${l}: No such file or directory", b"catch(q){o+=`tee: ${l}: ${reasonOf(q)}"),
    (
        b"catch(E){me(E),m+=`cat: ${S}: No such file or directory",
        b"catch(E){me(E),m+=`cat: ${S}: ${reasonOf(E)}",
    ),
    *just_bash_jq.PARTS,
)


def with_parts(source: bytes) -> bytes:
    """Returns just-bash's file with its parts replaced; `BundleError` if it is another file."""
    for begin, *ends, other in _PARTS:
        before, found, rest = source.partition(begin)
        for end in ends:
            _, found, after = rest.partition(end)
            rest = end + after
        if not found:
            raise BundleError("just-bash's file is another one than the shell was made for")
        source = before + other + rest
    # `${x:offset:length}` takes a number of JavaScript
    source = re.sub(_SPANS, rb"Number(await \1)", source)
    # the status of `break` and `continue`
    source = re.sub(_LOOPS, rb"\1=\2.exitCode}}\3,/k$|ue$/.test(\2.action)&&(\1=0),", source)
    # `declare -p` of maps
    source = re.sub(_MAPS, rb"\1 )", source)
    return source.replace(b"globskipdots:e.state", _NO_CASE)
