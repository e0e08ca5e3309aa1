//! The colours of the plots: a style variable that follows the reader's colour scheme, with a fixed colour where there is no style.
//!
//! Arms and symptoms differ by shape and text as well; the colours are told apart by readers with any common colour blindness
//! (after Okabe and Ito's palette, darkened until each has a contrast of 4.5:1 on white).

/// One colour: the style variable's name and the fixed red, green, blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ink {
    variable: &'static str,
    pub(crate) rgb: (u8, u8, u8),
}

impl Ink {
    /// The colour as plotters writes it.
    pub(crate) fn fixed(self) -> String {
        format!("#{:02X}{:02X}{:02X}", self.rgb.0, self.rgb.1, self.rgb.2)
    }

    /// The colour as an attribute's value that follows the style.
    pub(crate) fn themed(self) -> String {
        format!("var({}, {})", self.variable, self.fixed())
    }
}

/// Text and axes.
pub(crate) const TEXT: Ink = Ink { variable: "--text", rgb: (0x1b, 0x1f, 0x24) };
/// Grid lines.
pub(crate) const GRID: Ink = Ink { variable: "--grid", rgb: (0xdf, 0xe3, 0xe8) };
/// The baseline.
pub(crate) const BASELINE: Ink = Ink { variable: "--baseline", rgb: (0x4a, 0x53, 0x60) };
/// The A/A control.
pub(crate) const CONTROL: Ink = Ink { variable: "--control", rgb: (0x6c, 0x74, 0x7f) };

/// Candidates, in the comparison's order.
const CANDIDATES: [Ink; 6] = [
    Ink { variable: "--arm-1", rgb: (0x1f, 0x63, 0xc6) },
    Ink { variable: "--arm-2", rgb: (0xb4, 0x4d, 0x08) },
    Ink { variable: "--arm-3", rgb: (0x0b, 0x76, 0x68) },
    Ink { variable: "--arm-4", rgb: (0x98, 0x2f, 0x7c) },
    Ink { variable: "--arm-5", rgb: (0x75, 0x65, 0x00) },
    Ink { variable: "--arm-6", rgb: (0x5b, 0x4b, 0xc4) },
];

/// Symptoms, in their order of precedence.
const SYMPTOMS: [Ink; 8] = [
    Ink { variable: "--symptom-1", rgb: (0xc2, 0x56, 0x0a) },
    Ink { variable: "--symptom-2", rgb: (0x8f, 0x2d, 0x74) },
    Ink { variable: "--symptom-3", rgb: (0x2a, 0x6c, 0xcf) },
    Ink { variable: "--symptom-4", rgb: (0x0d, 0x7f, 0x70) },
    Ink { variable: "--symptom-5", rgb: (0x8a, 0x78, 0x04) },
    Ink { variable: "--symptom-6", rgb: (0x3c, 0x8c, 0xc6) },
    Ink { variable: "--symptom-7", rgb: (0x77, 0x7f, 0x8a) },
    Ink { variable: "--symptom-8", rgb: (0x7b, 0x4a, 0x2b) },
];

/// The colour of a candidate; beyond the sixth they repeat, and shape and label tell them apart.
pub(crate) fn candidate(index: usize) -> Ink {
    CANDIDATES[index % CANDIDATES.len()]
}

/// The colour of a symptom by its place in the order of precedence.
pub(crate) fn symptom(index: usize) -> Ink {
    SYMPTOMS[index % SYMPTOMS.len()]
}

/// Every colour a plot may use.
pub(crate) fn all() -> impl Iterator<Item = Ink> {
    [TEXT, GRID, BASELINE, CONTROL].into_iter().chain(CANDIDATES).chain(SYMPTOMS)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    type Rgb = [f64; 3];

    /// The colour variables of the light and of the dark scheme.
    fn schemes() -> [BTreeMap<String, Rgb>; 2] {
        let style = include_str!("templates/style.css");
        let mut blocks = style.split(":root {").skip(1).map(|block| {
            let entries = block.split('}').next().unwrap().split(';');
            entries
                .filter_map(|entry| entry.split_once(": #"))
                .map(|(name, hex)| (name.trim().to_owned(), rgb(hex)))
                .collect()
        });
        [blocks.next().unwrap(), blocks.next().unwrap()]
    }

    fn rgb(hex: &str) -> Rgb {
        [0, 2, 4].map(|at| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0)
    }

    /// Contrast of two colours, 1 to 21, as WCAG 2 defines it.
    fn contrast(a: Rgb, b: Rgb) -> f64 {
        let linear = |value: f64| if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) };
        let luminance = |c: Rgb| 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn text_has_a_contrast_of_four_and_a_half_and_lines_of_three() {
        for scheme in schemes() {
            for text in
                ["--text", "--muted", "--accent", "--pass", "--regressed", "--inconclusive", "--invalid", "--worse"]
            {
                for ground in ["--card", "--page", "--soft"] {
                    let contrast = contrast(scheme[text], scheme[ground]);
                    assert!(contrast >= 4.5, "{text} on {ground}: {contrast:.2}");
                }
            }
            for ink in [BASELINE, CONTROL].into_iter().chain(CANDIDATES) {
                let contrast = contrast(scheme[ink.variable], scheme["--card"]);
                assert!(contrast >= 4.5, "{}: {contrast:.2}", ink.variable);
            }
            for ink in SYMPTOMS {
                let contrast = contrast(scheme[ink.variable], scheme["--card"]);
                assert!(contrast >= 3.0, "{}: {contrast:.2}", ink.variable);
            }
            for fill in ["--better", "--worse"] {
                let mixed = [0, 1, 2].map(|i| (scheme[fill][i] + scheme["--card"][i]) / 2.0);
                assert!(contrast(scheme["--text"], mixed) >= 4.5, "text on the strongest {fill}");
            }
        }
    }

    #[test]
    fn no_two_colours_are_the_same_and_every_variable_is_in_the_style() {
        let style = include_str!("templates/style.css");
        let fixed: BTreeSet<String> = all().map(Ink::fixed).collect();
        assert_eq!(fixed.len(), all().count());
        for ink in all() {
            let defined = style.matches(&format!("{}:", ink.variable)).count();
            assert_eq!(defined, 2, "{} is defined for light and for dark", ink.variable);
        }
    }
}
