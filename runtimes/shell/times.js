// Times as `strftime` of `jq` writes them: just-bash's own function knows nine directives, and leaves the others as they are.

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"], DAY = 86400000;
const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const FORMS = { D: "%m/%d/%y", F: "%Y-%m-%d", R: "%H:%M", T: "%H:%M:%S", X: "%H:%M:%S", c: "%a %b %e %H:%M:%S %Y", r: "%I:%M:%S %p", x: "%m/%d/%y" };
const padded = (number, size = 2, fill = "0") => String(number).padStart(size, fill);

/** Returns a time as text in a format. */
export function written(time, format) {
  const year = time.getUTCFullYear(), month = time.getUTCMonth(), date = time.getUTCDate(), day = time.getUTCDay();
  const hour = time.getUTCHours(), halfDay = ((hour + 11) % 12) + 1, half = hour < 12 ? "AM" : "PM";
  const ofYear = Math.floor((Date.UTC(year, month, date) - Date.UTC(year, 0, 1)) / DAY), sinceMonday = (day + 6) % 7;
  const thursday = new Date(Date.UTC(year, month, date - sinceMonday + 3)), weekYear = thursday.getUTCFullYear();
  const pieces = {
    A: DAYS[day], a: DAYS[day].slice(0, 3), B: MONTHS[month], b: MONTHS[month].slice(0, 3), h: MONTHS[month].slice(0, 3),
    C: padded(Math.floor(year / 100)), Y: year, y: padded(year % 100), m: padded(month + 1), d: padded(date), e: padded(date, 2, " "),
    G: weekYear, g: padded(weekYear % 100), V: padded(Math.floor((thursday - Date.UTC(weekYear, 0, 1)) / DAY / 7) + 1),
    U: padded(Math.floor((ofYear + 7 - day) / 7)), W: padded(Math.floor((ofYear + 7 - sinceMonday) / 7)), j: padded(ofYear + 1, 3),
    H: padded(hour), I: padded(halfDay), k: padded(hour, 2, " "), l: padded(halfDay, 2, " "), p: half, P: half.toLowerCase(),
    M: padded(time.getUTCMinutes()), S: padded(time.getUTCSeconds()), s: Math.floor(time / 1000), u: day || 7, w: day,
    Z: "UTC", z: "+0000", n: "\n", t: "\t", "%": "%",
  };
  return format.replace(/%(-?)([a-zA-Z%])/g, (all, short, letter) => {
    const text = letter in FORMS ? written(time, FORMS[letter]) : String(pieces[letter] ?? all);
    return short ? text.replace(/^[0 ]+(?=.)/, "") : text;
  });
}
