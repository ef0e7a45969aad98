//! What names in a rule match: globs over identities, templates over paths.

/// A glob: `*` stands for any run of characters, `?` for one. Everything else is itself, case included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    /// The glob written `pattern`.
    pub fn new(pattern: &str) -> Self {
        Self(pattern.to_owned())
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the pattern is just a word.
    pub fn is_exact(&self) -> bool {
        !self.0.contains(['*', '?'])
    }

    /// Whether it matches everything.
    pub fn is_any(&self) -> bool {
        !self.0.is_empty() && self.0.bytes().all(|byte| byte == b'*')
    }

    /// Whether `text` matches. Linear for one star; a star never costs more than text × pattern.
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (self.0.as_bytes(), text.as_bytes());
        let (mut p, mut t) = (0, 0);
        // Where to go on if a guess at the length of the last star's run was too short.
        let mut retry: Option<(usize, usize)> = None;
        while t < text.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    if p + 1 == pattern.len() {
                        return true;
                    }
                    retry = Some((p + 1, t));
                    p += 1;
                }
                Some(b'?') => {
                    p += 1;
                    t += char_len(text[t]);
                }
                Some(byte) if *byte == text[t] => {
                    p += 1;
                    t += 1;
                }
                _ => match retry {
                    Some((after_star, run_end)) => {
                        p = after_star;
                        t = run_end + 1;
                        retry = Some((after_star, t));
                    }
                    None => return false,
                },
            }
        }
        pattern[p.min(pattern.len())..].iter().all(|byte| *byte == b'*')
    }
}

/// How many bytes the character that begins with `byte` has.
fn char_len(byte: u8) -> usize {
    match byte {
        0xf0.. => 4,
        0xe0.. => 3,
        0xc0.. => 2,
        _ => 1,
    }
}

/// The regular expression of a route template such as `/v1/users/{id}` or `/files/{*rest}`; the error says
/// what is wrong with it. A trailing slash, the case and `;parameters` make no difference: they must not
/// be a way to a second quota.
pub fn template_regex(template: &str) -> Result<String, String> {
    if !template.starts_with('/') {
        return Err(format!("`{template}` does not begin with a slash"));
    }
    if let Some(found) = template.find(['?', '#', ';']) {
        return Err(format!(
            "a path has no `{}`; leave it and what follows out",
            &template[found..found + 1]
        ));
    }
    let mut regex = String::from("(?i)^");
    let segments: Vec<&str> = template[1..].trim_end_matches('/').split('/').collect();
    for (index, segment) in segments.iter().enumerate() {
        if segment.is_empty() {
            if segments.len() > 1 {
                return Err(format!("`{template}` has an empty segment"));
            }
            break;
        }
        regex.push('/');
        match segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            Some(name) if name.starts_with('*') => {
                if index + 1 != segments.len() {
                    return Err(format!("`{segment}` stands for the whole rest, so nothing can follow it"));
                }
                regex.push_str(".*$");
                return Ok(regex);
            }
            Some(name) if name.is_empty() || name.contains(['{', '}', '*']) => {
                return Err(format!("`{segment}` needs a plain name between its braces"));
            }
            Some(_) => regex.push_str("[^/;]+(?:;[^/]*)?"),
            None if segment.contains(['{', '}', '*']) => {
                return Err(format!("`{segment}` mixes text and braces; a `{{name}}` takes a whole segment"));
            }
            None => {
                regex.push_str(&regex::escape(segment));
                regex.push_str("(?:;[^/]*)?");
            }
        }
    }
    regex.push_str("/?$");
    Ok(regex)
}
