//! `rename_all`: serde's rules for names, as `serde_derive` has them (`internals/case.rs`).

/// A rule that makes a wire name from a name in the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::portable) enum Case {
    #[default]
    AsIs,
    Lower,
    Upper,
    Pascal,
    Camel,
    Snake,
    ScreamingSnake,
    Kebab,
    ScreamingKebab,
}

impl Case {
    pub(in crate::portable) fn from_rule(rule: &str) -> Option<Self> {
        Some(match rule {
            "lowercase" => Case::Lower,
            "UPPERCASE" => Case::Upper,
            "PascalCase" => Case::Pascal,
            "camelCase" => Case::Camel,
            "snake_case" => Case::Snake,
            "SCREAMING_SNAKE_CASE" => Case::ScreamingSnake,
            "kebab-case" => Case::Kebab,
            "SCREAMING-KEBAB-CASE" => Case::ScreamingKebab,
            _ => return None,
        })
    }

    /// Returns the name of a variant, which the source writes in Pascal case.
    pub(in crate::portable) fn variant(self, name: &str) -> String {
        match self {
            Case::AsIs | Case::Pascal => name.to_owned(),
            Case::Lower => name.to_ascii_lowercase(),
            Case::Upper => name.to_ascii_uppercase(),
            Case::Camel => lower_first(name),
            Case::Snake => {
                let mut snake = String::new();
                for (index, letter) in name.char_indices() {
                    if index > 0 && letter.is_uppercase() {
                        snake.push('_');
                    }
                    snake.push(letter.to_ascii_lowercase());
                }
                snake
            }
            Case::ScreamingSnake => Case::Snake.variant(name).to_ascii_uppercase(),
            Case::Kebab => Case::Snake.variant(name).replace('_', "-"),
            Case::ScreamingKebab => Case::ScreamingSnake.variant(name).replace('_', "-"),
        }
    }

    /// Returns the name of a field, which the source writes in snake case.
    pub(in crate::portable) fn field(self, name: &str) -> String {
        match self {
            Case::AsIs | Case::Lower | Case::Snake => name.to_owned(),
            Case::Upper | Case::ScreamingSnake => name.to_ascii_uppercase(),
            Case::Pascal => {
                let mut pascal = String::new();
                let mut capital = true;
                for letter in name.chars() {
                    if letter == '_' {
                        capital = true;
                    } else if capital {
                        pascal.push(letter.to_ascii_uppercase());
                        capital = false;
                    } else {
                        pascal.push(letter);
                    }
                }
                pascal
            }
            Case::Camel => lower_first(&Case::Pascal.field(name)),
            Case::Kebab => name.replace('_', "-"),
            Case::ScreamingKebab => Case::ScreamingSnake.field(name).replace('_', "-"),
        }
    }
}

fn lower_first(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| {
        let mut name = first.to_ascii_lowercase().to_string();
        name.push_str(letters.as_str());
        name
    })
}
