"""Text in many shapes: what a pre-tokenizer or a byte alphabet gets wrong shows on one of these."""

from hypothesis import strategies as st

LANGUAGES = [
    "The quick brown fox doesn't jump over the lazy dog's back; it'll rest, I'd say.",
    "Größere Flüsse führen Übermäßiges; die Straße ist naß.",
    "L’été où l’on dînait à Noël — « déjà vu », s’écria-t-il…",
    "¿Dónde está el niño? ¡Aquí! El pingüino comió ñoquis.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "敏捷的棕色狐狸跳过了懒狗。数字123和４５６，标点：《书名》、“引号”。",
    "いろはにほへと チリヌルヲ ｶﾀｶﾅ 々〆ヶ 東京タワーへ行きました。",
    "다람쥐 헌 쳇바퀴에 타고파. ㄱㄴㄷ",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ١٢٣٤٥",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण १२३४",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ๑๒๓",
    "Nhanh như chớp, con cáo nâu nhảy qua con chó lười biếng.",
    "Pijamalı hasta yağız şoföre çabucak güvendi. İI ıi",
    "ქართული ენა • հայերեն • አማርኛ • ᏣᎳᎩ • ᠮᠣᠩᠭᠣᠯ",
    "𠀀𠀁 㐀㐁 龥龦 鿿 豈 〇〡〢 ㍿ ゟ゠ヿ㇀",
]

CODE = [
    "def f(x: int) -> str:\n    return f'{x!r:>{10}}'  # ok\n\n\nclass A:\n\tpass\n",
    '#include <stdio.h>\r\nint main(void) {\r\n\tprintf("%d\\n", a->b[0]);\r\n}\r\n',
    "SELECT * FROM t WHERE a<>'x''y' AND b>=1e-9; -- note",
    "<div class=\"a b\">&nbsp;<br/></div><!-- x --><think class='y'>",
    "$ cat ~/.bashrc | grep -E '^[a-z_]+=' >> /dev/null 2>&1 && echo $? ~~~",
    "x = a@b ^ c | d & ~e ** f // g % h << 2; λ→∀∃ ≠≤≥ √∞ ∑∫",
    '{"k":[1,2.50,-3e+07,null,true],"u":"\\u00e9\\/"}',
    "|a|b|\n|---|:-:|\n`code` **bold** _it_ ~~del~~ [l](http://x.y/z?q=1#f)",
]

NUMBERS = ["1234567890123456789"[:length] for length in range(20)] + [
    "3.14159265358979 1,000,000 0x1F 1e10 №5 ½ ² Ⅻ ①② ٣٤٥٦ ４５６７ 12ab34 a1b2c3 2024-05-06T07:08:09Z",
]

EMOJI = [
    "👩‍👩‍👧‍👦 👨🏽‍💻 🏳️‍🌈 ❤️‍🔥 ☺️ 🤷🏾‍♀️",
    "🇩🇪🇯🇵🇺🇳 🏴󠁧󠁢󠁳󠁣󠁴󠁿 1️⃣#️⃣",
    "ok👍🏿!!🎉🎉(╯°□°）╯︵ ┻━┻",
]

WHITESPACE = [
    "",
    " ",
    "  ",
    "   a    b     c\t\td\t \te",
    "\n",
    "\r\n\r\n\r",
    "a \n b \r\n  \r\n\tc\n\n\n  ",
    " " * 50 + "x" + " " * 50,
    "nbsp\u00a0em\u2003ideographic\u3000line\u2028para\u2029nel\u0085vt\x0bff\x0cogham\u1680zwsp\u200bbom\ufeff",
    "!\n\n?\r\n…\n",
]

ODDITIES = [
    "~", "~a", " ~", "~~b ~1", "a~b", "￥～「」『』【】、。！？；：（）—…·•‽⁂§¶†‡",
    "e\u0301 n\u0303 Z\u0351\u036b\u0343 \u0301alone \u0301\u0302",
    "क्षि நி กำ 각 각",
    "NUL\x00inside \x00\x01\x02\x1b[31mred\x1b[0m\x7f\x80\x9f",
    "\U0010ffff \ufffe \uffff \ufffd \ue000 \U000f0000 \u0378",
    "ＦＵＬＬ　ｗｉｄｔｈ ﬁ ﬂ Ǆ ß ẞ ſ",
    "mixedМешаный混合ミックス섞인مختلط123abcΩ",
    "'s 't 're 've 'm 'll 'd 'S ’s don’t DON'T",
    "_under__score_ camelCaseHTTPServer kebab-case .dot.path ./rel ../up",
    "\u202eright to left\u202c \u2066isolate\u2069 soft\u00adhyphen",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 10,
    "Ġ Ċ ĉ Ń Ā ġ āĂ",  # characters of the byte alphabet itself
]  # fmt: skip

CORPUS = [*LANGUAGES, *CODE, *NUMBERS, *EMOJI, *WHITESPACE, *ODDITIES]

# Arbitrary characters rarely meet in telling ways, so real fragments are mixed in.
texts = st.lists(
    st.one_of(
        st.sampled_from(CORPUS), st.text(max_size=12), st.sampled_from([" ", "\n", "\r\n", "7", "~", "a"])
    ),
    max_size=8,
).map("".join)
